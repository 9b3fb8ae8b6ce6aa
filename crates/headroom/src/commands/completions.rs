//! `headroom completions`: a completion script for a shell.

use std::fmt::Write;

use clap::{Command, CommandFactory, ValueHint};
use clap_complete::Shell;

use crate::arguments::Arguments;
use crate::helpers::output;

/// Runs the command.
pub fn completions(shell: Shell) -> anyhow::Result<()> {
    let mut script = Vec::new();
    let mut command = Arguments::command();
    clap_complete::generate(shell, &mut command, "headroom", &mut script);
    let mut script = String::from_utf8_lossy(&script).into_owned();
    // The generators for these two ignore the hints of arguments without an option.
    for path in expecting_user(&command) {
        match shell {
            Shell::Bash => complete_users_in_bash(&mut script, &path),
            Shell::Fish => complete_users_in_fish(&mut script, &path),
            _ => {}
        }
    }
    output::print(&script)
}

/// The commands that expect a user, each with the names of the commands it belongs to before it.
fn expecting_user(command: &Command) -> Vec<Vec<&str>> {
    let mut found = Vec::new();
    for inner in command.get_subcommands() {
        if inner.get_positionals().any(|it| it.get_value_hint() == ValueHint::Username) {
            found.push(vec![inner.get_name()]);
        }
        let below = expecting_user(inner).into_iter();
        found.extend(below.map(|path| [vec![inner.get_name()], path].concat()));
    }
    found
}

fn complete_users_in_bash(script: &mut String, path: &[&str]) {
    let names = path.iter().map(|name| name.replace('-', "__subcmd__"));
    let case = names.fold("headroom".to_owned(), |case, name| case + "__subcmd__" + &name);
    let words = format!("\n        {case})\n            opts=\"");
    *script = script.replace(&words, &format!("{words}$(compgen -u) "));
}

fn complete_users_in_fish(script: &mut String, path: &[&str]) {
    let condition = path.join("; and __fish_seen_subcommand_from ");
    let _ = writeln!(
        script,
        "complete -c headroom -n \"__fish_headroom_using_subcommand {condition}\" -f \
         -a \"(__fish_complete_users)\""
    );
}
