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

use fencepost::Tier;
use serde::{Deserialize, Serialize};

/// Where the names with a prefix go.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The names that it is about. The empty prefix is about all others.
    pub prefix: String,
    /// The system.
    pub address: String,
    /// What its locks are for; if it does not say, what each request asks for.
    #[serde(default, with = "tier_in_files")]
    pub tier: Option<Tier>,
}

/// A tier as files say it.
mod tier_in_files {
    use fencepost::Tier;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Deserialize, Serialize)]
    #[serde(rename_all = "lowercase")]
    enum Word {
        Correctness,
        Efficiency,
    }

    pub(super) fn serialize<S: Serializer>(tier: &Option<Tier>, to: S) -> Result<S::Ok, S::Error> {
        let word = tier.map(|tier| match tier {
            Tier::Correctness => Word::Correctness,
            Tier::Efficiency => Word::Efficiency,
        });
        word.serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Tier>, D::Error> {
        let word = Option::<Word>::deserialize(from)?;
        Ok(word.map(|word| match word {
            Word::Correctness => Tier::Correctness,
            Word::Efficiency => Tier::Efficiency,
        }))
    }
}

/// All rules of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    /// In any order.
    #[serde(default)]
    pub rules: Vec<Rule>,
}
