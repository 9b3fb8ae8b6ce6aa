//! `headroom`: starts the daemons, queries them, and explains their decisions.
//!
//! [`arguments`] is the command line itself; [`commands`] has what it does. A command collects its
//! output as text or JSON and prints it in one write ([`output`]).

mod arguments;
mod commands;
mod helpers;

use std::process::ExitCode;

use clap::Parser;

use arguments::{Arguments, BinderCommand, Command, OomCommand, UserLabels};
use commands::{
    binder, completions, config, container, doctor, kill, limit, notify, oom, preload, run, status,
    top, up, why,
};
use helpers::output;

fn main() -> ExitCode {
    #[cfg(feature = "binderd")]
    if let Some(code) = helpers::programs::run_binderd_if_named() {
        return code;
    }
    let arguments = Arguments::parse();
    match dispatch(&arguments) {
        Ok(code) => code,
        Err(error) => {
            output::warn(format_args!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn dispatch(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let globals = &arguments.globals;
    match &arguments.command {
        Command::Up(options) => return up::up(globals, options),
        Command::Run(options) => return Ok(run::run(options)),
        Command::Limit(command) => limit::limit(globals, command)?,
        Command::Config(command) => return config::config(globals, command),
        Command::RunOomKiller { user } => why::run_oom_killer(globals, user.as_ref())?,
        Command::Status { bounds: true } => status::bounds(globals)?,
        Command::Status { .. } => return status::status(globals),
        Command::Notify => notify::notify(globals)?,
        Command::Metrics { user_names } => {
            let labels = if *user_names { UserLabels::UidAndName } else { UserLabels::Uid };
            return status::metrics(globals, labels);
        }
        Command::Top(options) => top::top(globals, options)?,
        Command::Why { number, follow, id, user } => {
            let selection = why::Selection { number: *number, id: *id, user: user.as_ref() };
            if *follow { why::follow(globals, selection)? } else { why::why(globals, selection)? }
        }
        Command::Explain { user } => why::explain(globals, user.as_ref())?,
        Command::Kill(kill) => return kill::kill(globals, kill),
        Command::Oom(OomCommand::Observe { config }) => oom::observe(globals, config.as_deref())?,
        Command::Oom(OomCommand::Detach { bpf_pin_dir }) => oom::detach(globals, bpf_pin_dir)?,
        Command::Reserve(options) => return preload::reserve(globals, options),
        Command::Binder(BinderCommand::Attach(options)) => return preload::attach(options),
        Command::Binder(BinderCommand::Ls) => binder::ls(globals)?,
        Command::Binder(BinderCommand::Reclaim { size }) => binder::reclaim(globals, *size)?,
        Command::Binder(BinderCommand::ServiceManager(options)) => {
            binder::service_manager::service_manager(options)?;
        }
        Command::Binder(BinderCommand::Upgrade { program }) => {
            binder::upgrade(globals, program.as_deref())?;
        }
        Command::Binder(BinderCommand::Trace(options)) => binder::trace::trace(globals, options)?,
        Command::Binder(BinderCommand::Stat { seconds, count }) => {
            binder::stat::stat(globals, *seconds, *count)?;
        }
        Command::Container(command) => container::container(globals, command)?,
        Command::Doctor { wanted } => return doctor::doctor(globals, *wanted),
        Command::Completions { shell } => completions::completions(*shell)?,
    }
    Ok(ExitCode::SUCCESS)
}
