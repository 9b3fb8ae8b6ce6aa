//! Checks the command lines in the documents with the parsers of the programs.

use std::fs;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;

/// A command line of a document.
#[derive(Debug)]
pub struct CommandLine {
    /// The document, and the command as it is written there.
    pub place: String,
    /// Its words, with values for placeholders such as `USER`.
    pub words: Vec<String>,
    form: Form,
}

/// How a document shows a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// A line of an example, which a reader runs as it is.
    Example,
    /// Code within a sentence or a table, which may omit required arguments.
    Mention,
}

/// Placeholders of the documents, and a value that each program accepts in their place.
const PLACEHOLDERS: [(&str, &str); 25] = [
    ("alice", "root"),
    ("USER", "root"),
    ("USER:GROUP", "root:root"),
    ("root:render", "root:root"),
    ("SIZE", "1G"),
    ("DIR", "/tmp"),
    ("FILE", "/tmp/file"),
    ("NAMES", "binder"),
    ("METHOD", "ptrace"),
    ("CMD", "true"),
    ("COMMAND", "true"),
    ("SHELL", "bash"),
    ("OCTAL", "0660"),
    ("LEVEL", "36"),
    ("GROUP", "root"),
    ("NAME", "binder"),
    ("PERCENT", "10"),
    ("SECONDS", "1"),
    ("PID", "1"),
    ("ID", "1"),
    ("N", "1"),
    ("P", "1"),
    ("D", "binder"),
    ("HOW", "auto"),
    ("PATH", "/tmp/file"),
];

impl CommandLine {
    fn is_fault(&self, error: &clap::Error) -> bool {
        match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => false,
            ErrorKind::MissingRequiredArgument
            | ErrorKind::MissingSubcommand
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => self.form == Form::Example,
            _ => true,
        }
    }
}

/// Parses all command lines of a program in the documents, and fails with those that it refuses.
///
/// # Panics
///
/// If a command line is invalid, or none was found.
pub fn check_command_lines<P: clap::Parser>(program: &str) {
    let lines = command_lines(program);
    assert!(!lines.is_empty(), "no document mentions {program}");
    let fault = |line: &CommandLine| {
        let error = P::try_parse_from(&line.words).err()?;
        line.is_fault(&error).then(|| format!("{}\n    {error}", line.place))
    };
    let faults: Vec<String> = lines.iter().filter_map(fault).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// All command lines of a program in README, the other documents and the examples of the manuals.
pub fn command_lines(program: &str) -> Vec<CommandLine> {
    let mut found = Vec::new();
    for path in documents() {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).expect("a document");
        let commands = if name.ends_with(".md") { markdown(&text) } else { examples(&text) };
        for (command, form) in commands {
            let words = words(&command);
            if words.first().is_some_and(|word| word == program) {
                found.push(CommandLine { place: format!("{name}: {command}"), words, form });
            }
        }
    }
    found
}

/// The documents for users and developers, and the manual pages.
fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = Vec::new();
    for folder in [".", "docs", "docs/design", "dist/man"] {
        let entries = fs::read_dir(root.join(folder)).expect("a folder of documents");
        let paths = entries.map(|entry| entry.expect("a document").path());
        found.extend(paths.filter(|path| folder == "dist/man" || is_markdown(path)));
    }
    found.sort();
    found
}

fn is_markdown(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "md")
}

/// Lines of code blocks, and code spans of the other lines.
fn markdown(text: &str) -> Vec<(String, Form)> {
    let mut found = Vec::new();
    // Text is between the fences at even positions, code at odd ones.
    for (at, part) in text.split("```").enumerate() {
        if at % 2 == 1 {
            found.extend(lines(part).map(|line| (line, Form::Example)));
        } else {
            let spans = part.split('`').skip(1).step_by(2);
            found.extend(spans.map(|span| (span.to_owned(), Form::Mention)));
        }
    }
    found
}

/// Lines between `.EX` and `.EE` in the section EXAMPLES.
fn examples(manual: &str) -> Vec<(String, Form)> {
    let section = manual.split("\n.SH EXAMPLES\n").nth(1).unwrap_or_default();
    let section = section.split("\n.SH ").next().unwrap_or_default();
    let blocks = section.split(".EX\n").skip(1).filter_map(|rest| rest.split(".EE").next());
    let plain = |block: &str| {
        [("\\-", "-"), ("\\(aq", "'"), ("\\(dq", "\""), ("\\e", "\\")]
            .iter()
            .fold(block.to_owned(), |text, (escape, letter)| text.replace(escape, letter))
    };
    let blocks: Vec<String> = blocks.map(plain).collect();
    blocks.iter().flat_map(|block| lines(block)).map(|line| (line, Form::Example)).collect()
}

/// Lines of a block, those that a backslash continues joined, without prompt and `sudo`.
fn lines(block: &str) -> impl Iterator<Item = String> {
    let joined = block.replace("\\\n", " ");
    // An indented line is a part of a drawing, or of an output.
    let own = joined.lines().filter(|line| !line.starts_with(' '));
    let lines: Vec<String> = own.map(without_prompt).collect();
    lines.into_iter()
}

fn without_prompt(line: &str) -> String {
    let line = line.strip_prefix("$ ").unwrap_or(line);
    line.strip_prefix("sudo ").unwrap_or(line).to_owned()
}

/// Splits a command as a shell does, up to a redirection or the next command. Of the notation of a
/// synopsis, optional arguments are kept, and of alternatives the first.
fn words(command: &str) -> Vec<String> {
    let synopsis = command.replace("\\|", "|").replace("[:", ":");
    let mut words = Vec::new();
    let mut brackets = 0;
    let mut is_alternative = false;
    for word in shlex::split(&synopsis).unwrap_or_default() {
        match word.as_str() {
            "|" if brackets > 0 => is_alternative = true,
            "|" | "||" | "&" | "&&" | ">" | ";" => break,
            _ if is_alternative => {}
            _ => words.push(value(&word)),
        }
        brackets += word.matches('[').count();
        brackets -= word.matches(']').count().min(brackets);
        is_alternative &= brackets > 0;
    }
    words
}

/// A word of a synopsis without its notation, with values for placeholders: `[USER]`, `PID...`,
/// `gid=GROUP`.
fn value(word: &str) -> String {
    let bare = word.trim_start_matches('[').trim_end_matches(']').trim_end_matches("...");
    let (key, placeholder) = bare.rsplit_once('=').unwrap_or(("", bare));
    let known = PLACEHOLDERS.iter().find(|(known, _)| *known == placeholder);
    match known {
        Some((_, value)) if key.is_empty() => (*value).to_owned(),
        Some((_, value)) => format!("{key}={value}"),
        None => bare.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_blocks_are_examples_and_code_spans_are_mentions() {
        let text = "Run `a run -- CMD`.\n```\n$ sudo a set alice \\\n    2G  # why\nb\n```\n`c`\n";
        let found: Vec<_> = markdown(text).into_iter().map(|(l, form)| (words(&l), form)).collect();
        let line = |text: &str, form| (text.split_whitespace().map(str::to_owned).collect(), form);
        assert_eq!(
            found,
            [
                line("a run -- true", Form::Mention),
                line("", Form::Example),
                line("a set root 2G", Form::Example),
                line("b", Form::Example),
                line("c", Form::Mention),
            ]
        );
    }

    #[test]
    fn a_synopsis_becomes_one_of_its_command_lines() {
        let options = "a [--family \\| --group PID] [-n N | ID] [--owner USER[:GROUP]]";
        let found = words(&format!("{options} -o gid=GROUP PID... > FILE"));
        assert_eq!(found.join(" "), "a --family -n 1 --owner root:root -o gid=root 1");
    }

    #[test]
    fn examples_of_manuals_are_unescaped() {
        let manual =
            "x\n.SH EXAMPLES\n.EX\na \\-b \\(aqc d\\(aq \\e\n  e\n.EE\n.SH SEE ALSO\n.EX\nf\n.EE\n";
        let found: Vec<Vec<String>> =
            examples(manual).iter().map(|(line, _)| words(line)).collect();
        assert_eq!(found, [["a", "-b", "c d", "e"]]);
    }
}
