//! `headroom completions`: a completion script for a shell.

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
    if shell == Shell::Bash {
        complete_users(&mut script, &command, "headroom");
    }
    output::print(&script)
}

/// Adds the users to the words of each command that expects one: the generator for bash ignores the
/// hints of arguments without an option.
fn complete_users(script: &mut String, command: &Command, path: &str) {
    if command.get_positionals().any(|it| it.get_value_hint() == ValueHint::Username) {
        let words = format!("\n        {path})\n            opts=\"");
        *script = script.replace(&words, &format!("{words}$(compgen -u) "));
    }
    for inner in command.get_subcommands() {
        let name = inner.get_name().replace('-', "__subcmd__");
        complete_users(script, inner, &format!("{path}__subcmd__{name}"));
    }
}
