//! Splits options from a string or from `/etc/default/earlyoom`.

use super::error::ImportError;

/// The variable that earlyoom's unit and init script take the options from.
const VARIABLE: &str = "EARLYOOM_ARGS";

/// The arguments of the command line: either split already by a shell or a unit, or one string with
/// all options, which is split in the same way.
pub fn of_command_line(arguments: &[String]) -> Result<Vec<String>, ImportError> {
    match arguments {
        [options] => split(options),
        words => Ok(words.to_owned()),
    }
}

/// The arguments of the last assignment in the content of an environment file. An unquoted value
/// ends at the end of its line, as in systemd.
pub fn of_environment_file(content: &str) -> Result<Vec<String>, ImportError> {
    let mut value = None;
    let mut start = 0;
    for line in content.split_inclusive('\n') {
        if let Some(after) = assigned(line) {
            // A quoted value can continue on the next lines.
            let at = start + line.len() - after.len();
            value = Some(&content[at..]);
        }
        start += line.len();
    }
    let value = value.ok_or_else(|| ImportError {
        option: VARIABLE.into(),
        fact: "the file does not assign it".into(),
        remedy: format!("write {VARIABLE}=\"OPTIONS\", or give the options themselves"),
    })?;
    if value.starts_with(['"', '\'']) {
        split(&shlex::Shlex::new(value).next().ok_or_else(unbalanced)?)
    } else {
        split(value.lines().next().unwrap_or_default())
    }
}

/// What follows `EARLYOOM_ARGS=`, if the line assigns it.
fn assigned(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let line = line.strip_prefix("export ").map_or(line, str::trim_start);
    line.strip_prefix(VARIABLE)?.strip_prefix('=')
}

fn split(text: &str) -> Result<Vec<String>, ImportError> {
    shlex::split(text).ok_or_else(unbalanced)
}

fn unbalanced() -> ImportError {
    ImportError {
        option: "quotes".into(),
        fact: "a quote is not closed, or a backslash is the last character".into(),
        remedy: "close it: --avoid '^sshd$'".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(content: &str) -> Vec<String> {
        of_environment_file(content).unwrap()
    }

    #[test]
    fn one_string_is_split_and_several_words_are_taken_as_they_are() {
        let one = ["-m 10 --avoid '^(a b|c)$' -r 3600".to_owned()];
        let expected = ["-m", "10", "--avoid", "^(a b|c)$", "-r", "3600"];
        assert_eq!(of_command_line(&one).unwrap(), expected);
        let several = ["--avoid".to_owned(), "^a b$".to_owned()];
        assert_eq!(of_command_line(&several).unwrap(), several);
        assert_eq!(of_command_line(&[]).unwrap(), [] as [String; 0]);
        let open = of_command_line(&["--avoid 'x".to_owned()]).unwrap_err();
        assert!(open.to_string().contains("a quote is not closed"), "{open}");
    }

    #[test]
    fn the_last_assignment_of_a_file_counts_and_comments_do_not() {
        let debian = "# It's sourced by /bin/sh.\nEARLYOOM_ARGS=\"-r 3600\"\n\
                      # EARLYOOM_ARGS=\"-m 5\"\n";
        assert_eq!(words(debian), ["-r", "3600"]);
        let quoted = "EARLYOOM_ARGS=-m 5\nEARLYOOM_ARGS=\"--avoid '(^|/)(init|X)$' -s 3\"\nX=1\n";
        assert_eq!(words(quoted), ["--avoid", "(^|/)(init|X)$", "-s", "3"]);
        assert_eq!(words("export EARLYOOM_ARGS='-m 5'"), ["-m", "5"]);
        assert_eq!(words("EARLYOOM_ARGS=-m 5 -n\nOTHER=3\n"), ["-m", "5", "-n"]);
        assert_eq!(words("EARLYOOM_ARGS=\"-m 5 \\\n -s 3\"\n"), ["-m", "5", "-s", "3"]);
        assert_eq!(words("EARLYOOM_ARGS=\n"), [] as [String; 0]);
    }

    #[test]
    fn a_file_without_options_is_refused() {
        let missing = of_environment_file("# EARLYOOM_ARGS=\"-m 5\"\n").unwrap_err().to_string();
        assert!(missing.contains("EARLYOOM_ARGS: the file does not assign it"), "{missing}");
        let open = of_environment_file("EARLYOOM_ARGS=\"-m 5\n").unwrap_err().to_string();
        assert!(open.contains("a quote is not closed"), "{open}");
    }
}
