//! The budget: what each crate may have, and the excess that is there already.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// First lines of the file.
const HEADER: &str = "# What each crate has at most, and excess that is there already and may only \
                      shrink; see src/budget.rs.\n\n";
/// Lines by which a crate may be below its budget before the budget has to be lowered, percent.
const SLACK_PERCENT: usize = 3;
/// Fields of a struct at most.
const MAX_FIELDS: usize = 15;
/// Files with an inherent `impl` of a type at most.
const MAX_FILES: usize = 2;

/// Counts, or their limits. Keys are names of crates, or `crate/Type`.
#[derive(Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Budget {
    /// Lines of production code of a crate.
    pub lines: BTreeMap<String, usize>,
    /// Fields of structs that have more than 15, outside of wire formats and command lines.
    pub fields: BTreeMap<String, usize>,
    /// Files with an inherent `impl` of a type, of types with more than two.
    pub impl_files: BTreeMap<String, usize>,
    /// Declarations of a name, of names that a crate declares more than once.
    pub names: BTreeMap<String, usize>,
}

impl Budget {
    /// Drops counts that need no permission.
    pub fn keep_excess(mut self) -> Self {
        self.fields.retain(|_, count| *count > MAX_FIELDS);
        self.impl_files.retain(|_, count| *count > MAX_FILES);
        self.names.retain(|_, count| *count > 1);
        self
    }

    /// What is against the budget, a sentence each.
    pub fn violations(&self, found: &Self) -> Vec<String> {
        let mut all = Vec::new();
        for (name, &lines) in &found.lines {
            let budget = self.lines.get(name).copied().unwrap_or(0);
            if lines > budget {
                all.push(format!(
                    "{name}: {lines} lines of production code, budget {budget}: remove some"
                ));
            } else if lines + budget * SLACK_PERCENT / 100 < budget {
                all.push(format!(
                    "{name}: {lines} lines of production code, budget {budget}: lower the budget"
                ));
            }
        }
        let gone = self.lines.keys().filter(|name| !found.lines.contains_key(*name));
        all.extend(gone.map(|name| format!("{name}: no such crate: remove its budget")));
        let tables = [
            (&self.fields, &found.fields, "fields", "split the struct"),
            (&self.impl_files, &found.impl_files, "files with an `impl`", "move the methods"),
            (&self.names, &found.names, "declarations of this name", "give them other names"),
        ];
        for (allowed, found, what, remedy) in tables {
            for (name, &count) in found {
                match allowed.get(name) {
                    Some(&limit) if count == limit => {}
                    Some(&limit) if count < limit => all.push(format!(
                        "{name}: {count} {what}, the budget allows {limit}: lower the budget"
                    )),
                    Some(&limit) => all.push(format!(
                        "{name}: {count} {what}, the budget allows {limit}: {remedy}"
                    )),
                    None => all.push(format!("{name}: {count} {what}: {remedy}")),
                }
            }
            let done = allowed.keys().filter(|name| !found.contains_key(*name));
            all.extend(done.map(|name| format!("{name}: no excess of {what}: remove the entry")));
        }
        all
    }

    /// The budget as its file has it.
    pub fn text(&self) -> Result<String, toml::ser::Error> {
        Ok(HEADER.to_owned() + &toml::to_string(self)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(lines: usize, fields: usize) -> Budget {
        Budget {
            lines: [("a".to_owned(), lines)].into(),
            fields: [("a/Big".to_owned(), fields)].into(),
            ..Budget::default()
        }
        .keep_excess()
    }

    #[test]
    fn excess_may_only_shrink_and_the_budget_follows() {
        let allowed = budget(100, 20);
        assert_eq!(allowed.violations(&budget(100, 20)), [""; 0]);
        assert_eq!(allowed.violations(&budget(98, 20)), [""; 0]);
        for (found, part) in [
            (budget(101, 20), "remove some"),
            (budget(90, 20), "lower the budget"),
            (budget(100, 21), "split the struct"),
            (budget(100, 16), "allows 20: lower the budget"),
            (budget(100, 15), "remove the entry"),
        ] {
            let violations = allowed.violations(&found);
            assert!(violations.len() == 1 && violations[0].contains(part), "{violations:?}");
        }
        assert!(allowed.violations(&Budget::default())[0].contains("no such crate"));
    }

    #[test]
    fn the_text_is_read_as_it_was_written() {
        let budget = budget(100, 20);
        assert_eq!(toml::from_str::<Budget>(&budget.text().unwrap()).unwrap(), budget);
    }
}
