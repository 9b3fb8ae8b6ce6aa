//! Keys that were renamed: the old name is accepted, with a hint, for one release.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Section, old key, new key.
const RENAMED: [(&str, &str, &str); 3] = [
    ("limit", "count", "account"),
    ("machine", "most-kills", "max-kills"),
    ("machine", "most-kills-ms", "max-kills-window-ms"),
];

/// Renames old keys unless the new key exists too. Returns a hint for each old key.
pub(crate) fn rename_old_keys(document: &mut DeTable) -> Vec<String> {
    let mut hints = Vec::new();
    for (section, old, new) in RENAMED {
        let Some(value) = document.get_mut(section) else { continue };
        let renamed = match value.get_mut() {
            DeValue::Table(table) => rename(table, old, new),
            DeValue::Array(tables) => {
                let tables = tables.iter_mut().filter_map(|entry| match entry.get_mut() {
                    DeValue::Table(table) => Some(rename(table, old, new)),
                    _ => None,
                });
                tables.fold(false, |any, one| any | one)
            }
            _ => false,
        };
        if renamed {
            hints.push(format!("\"{old}\" in [{section}] is deprecated: use \"{new}\""));
        }
    }
    hints
}

fn rename(table: &mut DeTable, old: &str, new: &'static str) -> bool {
    if table.contains_key(new) {
        return false;
    }
    let Some((key, value)) = table.remove_entry(old) else { return false };
    table.insert(Spanned::new(key.span(), new.into()), value);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_keys_are_renamed_with_a_hint_each_and_both_names_stay() {
        let text = "[[limit]]\ncount = [\"anon\"]\n[[limit]]\ncount = [\"swap\"]\n\
                    [machine]\nmost-kills = 1\nmax-kills = 2\nmost-kills-ms = 3\n";
        let mut document = DeTable::parse(text).unwrap().into_inner();
        let hints = rename_old_keys(&mut document);
        assert_eq!(
            hints,
            [
                "\"count\" in [limit] is deprecated: use \"account\"",
                "\"most-kills-ms\" in [machine] is deprecated: use \"max-kills-window-ms\"",
            ]
        );
        let limits = document["limit"].get_ref().as_array().unwrap();
        let tables = limits.iter().map(|limit| limit.get_ref().as_table().unwrap());
        assert!(tables.into_iter().all(|limit| limit.contains_key("account")));
        let machine = document["machine"].get_ref().as_table().unwrap();
        let keys: Vec<_> = machine.keys().map(|key| key.get_ref().as_ref()).collect();
        assert_eq!(keys, ["max-kills", "max-kills-window-ms", "most-kills"]);
    }
}
