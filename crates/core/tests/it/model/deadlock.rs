//! Deadlocks in the model: lists every edge from a waiting request to what blocks it, and follows all of them.
//!
//! Also checks the cycle that the state machine reports, since the model itself reports none.

use fencepost_core::*;

use super::Model;
use super::asking::{Stance, mode_at};

/// A waiting request by its session and number.
pub type Asker = (SessionId, RequestNumber);

/// A waiting request is blocked on one name, by a grant or by another request.
#[derive(Clone, Debug)]
pub struct Edge {
    pub from: Asker,
    pub owner: Option<OwnerName>,
    pub name: Name,
    /// The mode that the request needs on the name.
    pub need: Mode,
    /// The mode that its owner would hold there in the end. Stronger than `need` if the owner already holds something.
    pub target: Mode,
    /// The grant that blocks the request `from`. `None` if another request blocks it.
    pub by: Option<GrantId>,
    /// If a request blocks `from`: that request. If the grant `by` does: the waiting request of the grant's owner, if it waits.
    pub to: Option<Asker>,
}

/// All edges at the time when a request was refused as a deadlock, those of that request included.
#[derive(Clone, Debug)]
pub struct Scene {
    pub refused: Asker,
    pub edges: Vec<Edge>,
}

fn asker(waiter: &WaiterRecord) -> Asker {
    (waiter.session, waiter.number)
}

impl Model {
    // Rule: deadlock
    pub fn edges(&self, waiter: &WaiterRecord) -> Vec<Edge> {
        let mut edges = Vec::new();
        let Held::Locks(locks) = waiter.wants.held() else {
            return edges;
        };
        for (name, stance) in self.stances(waiter) {
            let need = mode_at(&locks, &name).expect("a stance is on a name of the request");
            let (Stance::Fresh(target) | Stance::Converting(target)) = stance;
            let mut edge = |by, to| {
                let (from, owner, name) = (asker(waiter), waiter.owner.clone(), name.clone());
                edges.push(Edge { from, owner, name, need, target, by, to });
            };
            for grant in self.grants_in_the_way(waiter, &name, stance) {
                edge(Some(grant.id), self.waiting_request_of_owner(grant).map(asker));
            }
            for other in self.waiters_in_the_way(waiter, &name, stance) {
                edge(None, Some(asker(other)));
            }
        }
        edges
    }

    pub fn scene(&self, refused: &WaiterRecord) -> Scene {
        let edges = self.waiters.iter().flat_map(|waiter| self.edges(waiter)).collect();
        Scene { refused: asker(refused), edges }
    }

    /// Notes that an owner holds less than before, so that its waiting request may now wait for more.
    pub fn note_loosened(&mut self, grant: &GrantRecord) {
        self.loosened.extend(self.waiting_request_of_owner(grant).map(|waiter| waiter.arrival));
    }

    /// An owner that holds less than when it began to wait can lose its place ahead of a queue, and then waits behind others.
    /// If that closes a cycle, no request on it could ever be granted, so the owner's wait ends as a deadlock.
    pub fn end_cycles_closed_by_an_end(&mut self) {
        let mut loosened = std::mem::take(&mut self.loosened);
        loosened.sort();
        for arrival in loosened {
            let waiter = self.waiters.iter().find(|waiter| waiter.arrival == arrival).cloned();
            if let Some(waiter) = waiter.filter(|waiter| self.closes_a_cycle(waiter)) {
                let scene = self.scene(&waiter);
                self.deadlocks.push(scene);
                self.end_wait(arrival, Outcome::Deadlock(Box::new(Cycle { links: Vec::new() })));
            }
        }
    }

    /// Whether the edges lead from a waiting request back to itself.
    pub fn closes_a_cycle(&self, waiter: &WaiterRecord) -> bool {
        let mut reached: Vec<Asker> = Vec::new();
        let mut ahead = vec![asker(waiter)];
        while let Some(next) = ahead.pop() {
            let next = self.waiter(next.0, next.1).expect("an edge leads to a waiting request");
            for to in self.edges(next).into_iter().filter_map(|edge| edge.to) {
                if to == asker(waiter) {
                    return true;
                }
                if !reached.contains(&to) {
                    reached.push(to);
                    ahead.push(to);
                }
            }
        }
        false
    }
}

/// Checks a reported cycle: each link's request is blocked by the owner of the next link, as the link says.
pub fn check_cycle(scene: &Scene, cycle: &Cycle) -> Result<(), String> {
    let links = &cycle.links;
    let Some(first) = links.first() else {
        return Err("a deadlock without a cycle".to_string());
    };
    if (first.session, first.number) != scene.refused {
        return Err(format!("the cycle begins with {first:?}, not with the refused request {:?}", scene.refused));
    }
    for (at, link) in links.iter().enumerate() {
        let next = &links[(at + 1) % links.len()];
        let real = scene.edges.iter().any(|edge| {
            edge.from == (link.session, link.number)
                && edge.owner == link.owner
                && edge.name == link.waits_for
                && (edge.target == link.wants || edge.need == link.wants)
                && edge.by == link.blocked_by
                && edge.to == Some((next.session, next.number))
        });
        if !real {
            return Err(format!("{link:?} does not wait for {next:?}: {:#?}", scene.edges));
        }
    }
    Ok(())
}
