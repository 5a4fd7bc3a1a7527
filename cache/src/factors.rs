//! The named values that an entry's key was made from, kept beside the payload to explain a miss.

use std::collections::BTreeMap;

use serde::Serialize;

/// Names and values in the order in which the writer gave them.
pub type Factors = Vec<(String, String)>;

/// One factor in which two entries differ.
#[derive(Clone, Debug, derive_more::Display, PartialEq, Eq, Serialize)]
#[display("{name}: {} is wanted, {} was found", shown(wanted), shown(found))]
pub struct FactorDifference {
    /// Which factor of the key it is: `pipeline`, `format`.
    pub name: String,
    /// Its value in what was asked for; `None` if the question has no such factor.
    pub wanted: Option<String>,
    /// Its value in the entry; `None` if the entry has no such factor.
    pub found: Option<String>,
}

fn shown(value: &Option<String>) -> String {
    value.as_ref().map_or("nothing".to_owned(), |value| format!("{value:?}"))
}

pub(crate) fn pairs(factors: &[(String, String)]) -> Vec<(&str, &str)> {
    factors.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

/// Every factor that is not the same in both, by name.
pub(crate) fn differences(wanted: &[(&str, &str)], found: &Factors) -> Vec<FactorDifference> {
    let mut by_name: BTreeMap<&str, (Option<&str>, Option<&str>)> = BTreeMap::new();
    for (name, value) in wanted {
        by_name.entry(name).or_default().0 = Some(value);
    }
    for (name, value) in found {
        by_name.entry(name).or_default().1 = Some(value);
    }
    by_name
        .into_iter()
        .filter(|(_, (wanted, found))| wanted != found)
        .map(|(name, (wanted, found))| FactorDifference {
            name: name.to_owned(),
            wanted: wanted.map(str::to_owned),
            found: found.map(str::to_owned),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_name_what_changed_what_is_new_and_what_is_gone() {
        let found = vec![
            ("target".to_owned(), "cuda:sm_80".to_owned()),
            ("size".to_owned(), "8".to_owned()),
            ("old".to_owned(), "1".to_owned()),
        ];
        let wanted = [("size", "8"), ("target", "cuda:sm_90"), ("new", "2")];
        let shown: Vec<_> = differences(&wanted, &found).iter().map(ToString::to_string).collect();
        assert_eq!(
            shown,
            [
                "new: \"2\" is wanted, nothing was found",
                "old: nothing is wanted, \"1\" was found",
                "target: \"cuda:sm_90\" is wanted, \"cuda:sm_80\" was found",
            ]
        );
    }
}
