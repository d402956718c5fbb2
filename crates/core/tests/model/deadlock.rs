//! Who waits for whom: every edge, listed; a cycle is found by following them all.

use fencepost_core::*;

use super::Model;
use super::asking::{Stance, mode_at};

/// A waiting request by its session and number.
pub type Asker = (SessionId, RequestNumber);

/// A waiting request is kept back, on one name, by a grant or by another request.
#[derive(Clone, Debug)]
pub struct Edge {
    pub from: Asker,
    pub owner: Option<OwnerName>,
    pub name: Name,
    /// The mode that the request needs on the name.
    pub need: Mode,
    /// The mode that its owner would hold there in the end; more than `need` if it holds something already.
    pub target: Mode,
    /// The grant in the way; none if it is a request that goes first.
    pub by: Option<GrantId>,
    /// The request through which the one in the way waits itself, if it does.
    pub to: Option<Asker>,
}

/// Everything that waited when a request was refused as a deadlock, that request included.
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
                edge(Some(grant.id), self.waits_for_owner_of(grant).map(asker));
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

    /// Takes note that an owner holds less than before; what it waits for may now be further away.
    pub fn note_loosened(&mut self, grant: &GrantRecord) {
        self.loosened.extend(self.waits_for_owner_of(grant).map(|waiter| waiter.arrival));
    }

    /// An owner that holds less than when it began to wait moves back in the queue: behind waiters that it was ahead of. If
    /// that closes a cycle, nobody on it could ever move again, so the wait that closed it ends as a deadlock.
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

    /// Whether the edges lead from a request that waits back to it.
    pub fn closes_a_cycle(&self, waiter: &WaiterRecord) -> bool {
        let mut reached: Vec<Asker> = Vec::new();
        let mut ahead = vec![asker(waiter)];
        while let Some(next) = ahead.pop() {
            let next = self.waiter(next.0, next.1).expect("edges lead to requests that wait");
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

/// Whether a reported cycle is one: each link's request is kept back by the next one's owner as it says.
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
