//! The transcript of a run: writing and parsing its text.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

/// Result of one case.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Played {
    /// Name of the case, `group.case`.
    pub case: String,
    /// Description of the case.
    pub about: String,
    /// One line per operation.
    pub lines: Vec<String>,
}

impl Played {
    /// The case as text.
    pub fn text(&self) -> String {
        let mut text = format!("== {}\n   {}\n", self.case, self.about);
        for line in &self.lines {
            let _ = writeln!(text, "{line}");
        }
        text.push('\n');
        text
    }
}

/// Parses a transcript: text as [`Played::text`] writes it, or one JSON object per line. Lines
/// before the first case are comments.
pub fn parse(text: &str) -> Result<Vec<Played>, String> {
    if text.trim_start().starts_with('{') {
        return text
            .lines()
            .enumerate()
            .filter(|(_, line)| !line.trim().is_empty())
            .map(|(at, line)| {
                serde_json::from_str(line).map_err(|e| format!("line {}: {e}", at + 1))
            })
            .collect();
    }
    let mut cases: Vec<Played> = Vec::new();
    for line in text.lines() {
        if let Some(case) = line.strip_prefix("== ") {
            let case = case.to_owned();
            cases.push(Played { case, about: String::new(), lines: Vec::new() });
        } else if let Some(current) = cases.last_mut() {
            match line.strip_prefix("   ") {
                Some(about) if current.about.is_empty() => current.about = about.to_owned(),
                _ if line.is_empty() => {}
                _ => current.lines.push(line.to_owned()),
            }
        }
    }
    if cases.is_empty() { Err("no case in it".to_owned()) } else { Ok(cases) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Played {
        let lines = vec!["P1 open = ok".to_owned(), "P1   sync=0x0".to_owned()];
        Played { case: "a.b".to_owned(), about: "what it is".to_owned(), lines }
    }

    #[test]
    fn a_transcript_reads_back_as_it_was_written() {
        let text = format!("# a remark\n{}{}", sample().text(), sample().text());
        assert_eq!(parse(&text).unwrap(), [sample(), sample()]);
    }

    #[test]
    fn json_reads_back_too() {
        let text = serde_json::to_string(&sample()).unwrap();
        assert_eq!(parse(&text).unwrap(), [sample()]);
    }

    #[test]
    fn a_file_without_cases_is_refused() {
        assert!(parse("nothing here\n").is_err());
    }
}
