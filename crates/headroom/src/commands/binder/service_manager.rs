//! `headroom binder service-manager`: names services on a bus.

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;

use anyhow::{Context, anyhow, bail, ensure};
use control::Uid;
use control::binderd::{Reply, Request};
use service_manager::names::{Access, Rule};
use service_manager::{Dialect, serve};

use crate::arguments::ServiceManager;
use crate::helpers::client::call_binderd;
use crate::helpers::output;
use crate::helpers::user::User;

/// The device of HIDL clients.
const HWBINDER: &str = "hwbinder";
/// The devices of a bus with a service manager. `binder` is last: when it has one, all have.
const DEVICES: [&str; 3] = [HWBINDER, "vndbinder", "binder"];

/// Serves until a device fails, for instance as the bus ends.
pub fn service_manager(options: &ServiceManager) -> anyhow::Result<()> {
    let access = options.rules.as_deref().map(read_rules).transpose()?.unwrap_or_default();
    let level = options.api_level;
    let dialect = |name| if name == HWBINDER { Dialect::Hidl } else { Dialect::Aidl(level) };
    let devices = DEVICES.map(|name| (options.bus.join(name), dialect(name)));
    let present: Vec<_> = devices.into_iter().filter(|(device, _)| device.exists()).collect();
    ensure!(
        !present.is_empty(),
        "{}: no binder, vndbinder or hwbinder is there; --bus names the folder of a bus",
        options.bus.display()
    );
    // The name in ps: a session executes /proc/self/exe.
    let _ = rustix::thread::set_name(c"service-manager");
    let (ended, ends) = mpsc::channel();
    for (device, dialect) in present {
        let (ready, becomes_ready) = mpsc::channel();
        let (ended, access) = (ended.clone(), access.clone());
        let name = device.clone();
        std::thread::spawn(move || {
            // The receiver waits until then.
            let is_ready = move || ready.send(()).unwrap_or_default();
            let result = serve(&device, dialect, access, is_ready);
            let _ = ended.send((device, result));
        });
        // An error ends the wait, too, and follows below.
        if becomes_ready.recv().is_err() {
            break;
        }
        output::print(&format!("{}\n", name.display()))?;
    }
    let (device, Err(error)) = ends.recv().context("no device is served")?;
    let device = device.display();
    if error.errno() == Some(rustix::io::Errno::BUSY) {
        bail!("{device}: the bus has a service manager already; `headroom binder ls` shows it");
    }
    Err(anyhow!(error).context(device.to_string()))
}

/// Reads lines of a pattern of names and the users that may register them.
fn read_rules(file: &Path) -> anyhow::Result<Access> {
    let name = file.display();
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {name}"))?;
    parse_rules(&text).map_err(|(line, why)| anyhow!("{name}:{line}: {why}"))
}

fn parse_rules(text: &str) -> Result<Access, (usize, String)> {
    let mut rules = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let Some(pattern) = words.next() else { continue };
        if pattern.strip_suffix('*').unwrap_or(pattern).contains('*') {
            return Err((number, format!("`{pattern}`: `*` is allowed at the end only")));
        }
        let users = words.map(uid).collect::<Result<_, _>>().map_err(|why| (number, why))?;
        rules.push(Rule { pattern: pattern.to_owned(), users });
    }
    Ok(Access::Rules(rules))
}

fn uid(user: &str) -> Result<Uid, String> {
    match user.parse()? {
        User::Uid(uid) => Ok(uid),
        User::Group(_) | User::Cgroup(_) => Err(format!("`{user}`: only users register names")),
    }
}

/// The command for the service manager of a session, which the shell parses; an empty one is ours.
/// Its input is empty, and its output goes to standard error; ours prints its devices.
pub fn command(line: &str) -> Command {
    if line.is_empty() {
        let mut command = Command::new("/proc/self/exe");
        command.args(["binder", "service-manager"]).stdin(Stdio::null()).stdout(Stdio::null());
        return command;
    }
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(line).stdin(Stdio::null());
    match std::io::stderr().as_fd().try_clone_to_owned() {
        Ok(stderr) => command.stdout(stderr),
        Err(_) => command.stdout(Stdio::null()),
    };
    command
}

/// Whether the service manager of [`command`] serves: a device has a context manager, and where it
/// is ours all of its devices.
pub fn is_there(socket: &Path, line: &str) -> bool {
    let Ok(Reply::Ls { devices }) = call_binderd(socket, &Request::Ls) else { return false };
    let is_ours = |name: &str| line.is_empty() && DEVICES.contains(&name);
    let mut waited = devices.iter().filter(|device| is_ours(&device.name));
    devices.iter().any(|device| device.manager.is_some())
        && waited.all(|device| device.manager.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_and_errors_have_their_line() {
        let text = "# names\n\nexample.*  root 7 # both\nother\n";
        let rule = |pattern: &str, users: &[u32]| Rule {
            pattern: pattern.to_owned(),
            users: users.iter().copied().map(Uid).collect(),
        };
        let rules = vec![rule("example.*", &[0, 7]), rule("other", &[])];
        assert_eq!(parse_rules(text), Ok(Access::Rules(rules)));
        let (line, why) = parse_rules("\na no-such-user").unwrap_err();
        assert!(line == 2 && why.contains("no-such-user"), "{why}");
        assert_eq!(parse_rules("a*b 1").unwrap_err().0, 1);
        assert_eq!(parse_rules("a @group").unwrap_err().0, 1);
        assert_eq!(parse_rules(""), Ok(Access::Rules(vec![])));
    }
}
