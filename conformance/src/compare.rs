//! Comparison of two transcripts, and the list of known differences with their reasons.

use std::collections::BTreeSet;

use serde::Deserialize;

use crate::transcript::Played;

/// The file of known differences.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Known {
    /// Listed differences.
    #[serde(default)]
    pub difference: Vec<KnownDifference>,
}

impl Known {
    /// Adds another list, whose entries replace those of the same case. An entry with an empty
    /// difference removes the case.
    pub fn overrule(&mut self, more: Known) {
        self.difference.retain(|old| more.difference.iter().all(|new| new.case != old.case));
        self.difference
            .extend(more.difference.into_iter().filter(|new| !new.diff.trim().is_empty()));
    }
}

/// An expected difference.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownDifference {
    /// The case.
    pub case: String,
    /// Why the subject differs.
    pub reason: String,
    /// The differing lines, `-` reference and `+` subject. Any other difference of the case is a
    /// failure.
    pub diff: String,
}

/// Result of the comparison of one case.
#[derive(Debug, PartialEq, Eq)]
pub enum Finding {
    /// The case differs and is not listed.
    Unlisted {
        /// The case.
        case: String,
        /// The differing lines.
        diff: String,
    },
    /// The case differs from the listed difference.
    ListedOtherwise {
        /// The case.
        case: String,
        /// The differing lines.
        diff: String,
    },
    /// The case differs as listed.
    Listed {
        /// The case.
        case: String,
        /// The listed reason.
        reason: String,
    },
    /// The case is listed and does not differ (any more).
    NoLonger {
        /// The case.
        case: String,
    },
    /// Only one of the two transcripts has the case.
    OneSided {
        /// The case.
        case: String,
        /// Name of that transcript.
        only_in: &'static str,
    },
}

impl Finding {
    /// Whether the comparison fails because of it.
    pub fn fails(&self) -> bool {
        !matches!(self, Finding::Listed { .. })
    }

    /// Text of the finding.
    pub fn text(&self) -> String {
        match self {
            Finding::Unlisted { case, diff } => {
                format!(
                    "{case}: differs and is not listed; the entry would be\n{}",
                    entry(case, diff)
                )
            }
            Finding::ListedOtherwise { case, diff } => {
                format!(
                    "{case}: differs in another way than listed; now it is\n{}",
                    entry(case, diff)
                )
            }
            Finding::Listed { case, reason } => format!("{case}: differs as listed: {reason}"),
            Finding::NoLonger { case } => {
                format!("{case}: listed, but it does not differ: remove the entry")
            }
            Finding::OneSided { case, only_in } => format!("{case}: only in the {only_in}"),
        }
    }
}

fn entry(case: &str, diff: &str) -> String {
    format!("[[difference]]\ncase = \"{case}\"\nreason = \"\"\ndiff = '''\n{diff}'''\n")
}

/// Compares case by case, in the order of the reference.
pub fn compare(reference: &[Played], subject: &[Played], known: &Known) -> Vec<Finding> {
    let mut findings = Vec::new();
    for expected in reference {
        let case = expected.case.clone();
        let Some(found) = subject.iter().find(|played| played.case == case) else {
            findings.push(Finding::OneSided { case, only_in: "reference" });
            continue;
        };
        let diff = diff(&expected.lines, &found.lines);
        let listed = known.difference.iter().find(|entry| entry.case == case);
        match (diff.is_empty(), listed) {
            (true, None) => {}
            (true, Some(_)) => findings.push(Finding::NoLonger { case }),
            (false, None) => findings.push(Finding::Unlisted { case, diff }),
            (false, Some(entry)) if entry.diff.trim() == diff.trim() => {
                findings.push(Finding::Listed { case, reason: entry.reason.trim().to_owned() });
            }
            (false, Some(_)) => findings.push(Finding::ListedOtherwise { case, diff }),
        }
    }
    let names: BTreeSet<&str> = reference.iter().map(|played| played.case.as_str()).collect();
    for played in subject.iter().filter(|played| !names.contains(played.case.as_str())) {
        findings.push(Finding::OneSided { case: played.case.clone(), only_in: "subject" });
    }
    for entry in &known.difference {
        if !names.contains(entry.case.as_str()) {
            findings.push(Finding::NoLonger { case: entry.case.clone() });
        }
    }
    findings
}

/// The lines that differ, by the longest common subsequence; empty when none do.
pub fn diff(reference: &[String], subject: &[String]) -> String {
    let (n, m) = (reference.len(), subject.len());
    let mut longest = vec![vec![0u32; m + 1]; n + 1];
    for i in (0..n).rev() {
        for j in (0..m).rev() {
            longest[i][j] = if reference[i] == subject[j] {
                longest[i + 1][j + 1] + 1
            } else {
                longest[i + 1][j].max(longest[i][j + 1])
            };
        }
    }
    let (mut i, mut j, mut text) = (0, 0, String::new());
    while i < n || j < m {
        if i < n && j < m && reference[i] == subject[j] {
            i += 1;
            j += 1;
        } else if j == m || (i < n && longest[i + 1][j] >= longest[i][j + 1]) {
            text += &format!("- {}\n", reference[i]);
            i += 1;
        } else {
            text += &format!("+ {}\n", subject[j]);
            j += 1;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn played(case: &str, lines: &[&str]) -> Played {
        let lines = lines.iter().map(|line| (*line).to_owned()).collect();
        Played { case: case.to_owned(), about: String::new(), lines }
    }

    fn known(case: &str, diff: &str) -> Known {
        let (case, diff) = (case.to_owned(), diff.to_owned());
        Known { difference: vec![KnownDifference { case, reason: "so".to_owned(), diff }] }
    }

    #[test]
    fn equal_transcripts_give_no_findings() {
        let cases = [played("a.a", &["one", "two"])];
        assert_eq!(compare(&cases, &cases, &Known::default()), []);
    }

    #[test]
    fn a_difference_that_is_not_listed_fails() {
        let findings = compare(
            &[played("a.a", &["one", "two", "three"])],
            &[played("a.a", &["one", "2", "three"])],
            &Known::default(),
        );
        let diff = "- two\n+ 2\n".to_owned();
        assert_eq!(findings, [Finding::Unlisted { case: "a.a".to_owned(), diff }]);
        assert!(findings[0].fails());
    }

    #[test]
    fn a_listed_difference_passes_and_another_one_in_its_place_fails() {
        let reference = [played("a.a", &["one"])];
        let list = known("a.a", "\n- one\n+ 1\n");
        assert!(!compare(&reference, &[played("a.a", &["1"])], &list)[0].fails());
        assert!(compare(&reference, &[played("a.a", &["uno"])], &list)[0].fails());
    }

    #[test]
    fn a_listed_difference_that_is_gone_is_reported() {
        let cases = [played("a.a", &["one"])];
        let findings = compare(&cases, &cases, &known("a.a", "- one\n"));
        assert_eq!(findings, [Finding::NoLonger { case: "a.a".to_owned() }]);
        assert!(findings[0].fails());
    }

    #[test]
    fn the_later_of_two_lists_takes_precedence_per_case() {
        let reference = [played("a.a", &["one"]), played("a.b", &["two"])];
        let subject = [played("a.a", &["1"]), played("a.b", &["two"])];
        let mut list = known("a.a", "- one\n+ uno\n");
        list.overrule(known("a.b", "- two\n"));
        assert!(compare(&reference, &subject, &list).iter().all(Finding::fails));
        list.overrule(known("a.a", "- one\n+ 1\n"));
        list.overrule(known("a.b", ""));
        let findings = compare(&reference, &subject, &list);
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(!findings[0].fails());
    }

    #[test]
    fn a_case_that_only_one_side_played_fails() {
        let findings = compare(&[played("a.a", &[])], &[played("a.b", &[])], &Known::default());
        assert_eq!(findings.len(), 2);
        assert!(findings.iter().all(Finding::fails));
    }
}
