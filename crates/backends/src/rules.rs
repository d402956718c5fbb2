//! Rules: which system and which tier the names with a prefix use.
//!
//! The longest matching prefix decides. Rules come from code or from a file in any format that serde reads:
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

/// The system for the names with a prefix.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The prefix of the names. The empty prefix matches every name.
    pub prefix: String,
    /// The address of the system.
    pub address: String,
    /// What these locks are for. Without it, each request decides.
    #[serde(default, with = "tier_in_files")]
    pub tier: Option<Tier>,
}

/// A tier as it is written in files.
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
