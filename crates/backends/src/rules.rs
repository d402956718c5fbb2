//! Which names go where: a prefix, the system for it, and the tier that its locks are for.
//!
//! The longest prefix that fits decides. Rules come from code or from a file in any format that serde reads:
//!
//! ```toml
//! [[rules]]
//! prefix = ""
//! address = "fencepost://127.0.0.1:7420"
//!
//! [[rules]]
//! prefix = "thumbnails/"
//! address = "redis://127.0.0.1/"
//! tier = "efficiency"
//! ```

use serde::{Deserialize, Serialize};

/// What the locks under a rule are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// Data depends on them: they have fencing tokens.
    Correctness,
    /// They save work that may now and then be done twice.
    Efficiency,
}

/// Where the names with a prefix go.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The names that it is about. The empty prefix is about all others.
    pub prefix: String,
    /// The system.
    pub address: String,
    /// What its locks are for; if it does not say, what each request asks for.
    #[serde(default)]
    pub tier: Option<Tier>,
}

/// All rules of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    /// In any order.
    #[serde(default)]
    pub rules: Vec<Rule>,
}
