//! Replaces the running program by another one in the same process, with the limits in force and
//! the kills in flight (`docs/design/upgrade.md`).

use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use control::oomd::Reply;
use control::{Peer, RequestId, Server};
use headroom_daemon::upgrade::{
    self, Completion, StateFile, UpgradeRequest, UpgradeRequests, Upgraded, VERSION,
};
use headroom_linux::clock::monotonic_ns;
use headroom_linux::kept_fd::{KeptFd, check_descriptors};
use headroom_linux::sched::leave_realtime;
use memory_watch::{Backend, Chosen};
use serde::{Deserialize, Serialize};

use crate::clock::NS_PER_MS;
use crate::leases::Leases;
use crate::log::Log;
use crate::oom::{OomManager, SavedKills, SavedLimit, TakenOver};
use crate::records::SavedRecords;
use crate::watching::{self, Wanted};

/// Version of the state. A field may be added with a default; any other change needs another
/// version, and the conversion from the one before.
const FORMAT: u32 = 1;
/// Limit for the verification of the state: the daemon kills no process meanwhile, the kernel does.
/// On an emulated CPU it takes seconds. The watchdog reports a loop that is stuck for 10 s.
const CHECK_LIMIT: Duration = Duration::from_secs(8);
/// How long an upgrade waits for notifications and programs of hooks.
const WAIT_NS: u64 = 500 * NS_PER_MS;

/// State of the daemon.
#[derive(Serialize, Deserialize)]
struct DaemonState {
    format: u32,
    /// Version of the program that writes it.
    from: String,
    /// Start of the pause, nanoseconds of `CLOCK_MONOTONIC`.
    paused_ns: u64,
    watch: SavedWatch,
    descriptors: Descriptors,
    kills: SavedKills,
    limits: Vec<SavedLimit>,
    records: SavedRecords,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Descriptors {
    control: KeptFd,
    control_of_root: Option<KeptFd>,
    /// The connection of the client that has requested the upgrade.
    requester: KeptFd,
    leases: KeptFd,
}

/// The source of memory events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum SavedWatch {
    Bpf,
    Proc,
}

impl From<Backend> for SavedWatch {
    fn from(backend: Backend) -> Self {
        match backend {
            Backend::Bpf => Self::Bpf,
            Backend::ProcPolling => Self::Proc,
        }
    }
}

/// Only the version, which all versions of the state have.
#[derive(Deserialize)]
struct Format {
    format: u32,
}

impl DaemonState {
    fn descriptors(&self) -> Vec<KeptFd> {
        let Descriptors { control, control_of_root, requester, leases } = self.descriptors;
        let own = [control, requester, leases].into_iter().chain(control_of_root);
        own.chain(self.kills.descriptors()).collect()
    }

    fn read(bytes: &[u8]) -> anyhow::Result<Self> {
        let Format { format } =
            serde_json::from_slice(bytes).context("this is not a state of headroom-oomd")?;
        ensure!(
            format <= FORMAT,
            "the state has format {format}, but this program reads format {FORMAT} at most: \
             upgrade to a program that is as new as the running one"
        );
        let state: Self = serde_json::from_slice(bytes).context("the state cannot be decoded")?;
        let inconsistent = |why| anyhow!("the state is inconsistent: {why}");
        check_descriptors(state.descriptors()).map_err(inconsistent)?;
        let kills = state.kills.verify().map_err(inconsistent)?;
        Ok(Self { kills, ..state })
    }
}

/// Runs `--check-state`: verifies the state in standard input, and that this program can watch
/// memory as the one that has written it, and reports that.
pub fn check_state(wanted: Wanted) -> anyhow::Result<()> {
    let state = DaemonState::read(&upgrade::read_state_to_check()?)?;
    let Chosen { watch, degraded } =
        watching::select(wanted, None).context("cannot watch memory")?;
    if SavedWatch::from(watch.backend()) != state.watch
        && let Some(why) = degraded
    {
        bail!("it would enforce limits later than the running program: {why}");
    }
    upgrade::report_verified();
    Ok(())
}

/// The parts of a daemon that an upgrade saves.
pub struct Parts<'a> {
    /// Limits and kills.
    pub oom: &'a OomManager,
    /// The control socket.
    pub server: &'a mut Server,
    /// The lease socket.
    pub leases: &'a Leases,
    /// The log.
    pub log: &'a Log,
}

/// Requests for upgrades.
#[derive(Default)]
pub struct Upgrades {
    requests: UpgradeRequests,
    /// Until when the accepted request waits, nanoseconds.
    until_ns: u64,
}

impl Upgrades {
    /// Accepts a request, or returns the reason why not. The reply is sent after the upgrade.
    pub fn accept(
        &mut self,
        id: RequestId,
        peer: Peer,
        program: Option<&Path>,
    ) -> Result<(), String> {
        self.requests.accept(id, peer, program)?;
        self.until_ns = monotonic_ns() + WAIT_NS;
        Ok(())
    }

    /// Whether [`dispatch`](Self::dispatch) has to be called.
    pub fn is_pending(&self) -> bool {
        self.requests.is_pending()
    }

    /// Replaces the program, if that was requested and nothing prevents it. If this returns, the
    /// daemon continues.
    pub fn dispatch(&mut self, parts: Parts<'_>, obstacle: Option<&str>) {
        if obstacle.is_some() && monotonic_ns() < self.until_ns {
            return;
        }
        let Some(request) = self.requests.take() else { return };
        let replaced = match obstacle {
            Some(obstacle) => Err(anyhow!("{obstacle}")),
            None => replace_program(&parts, &request),
        };
        let Err(error) = replaced;
        let message = format!("{error:#}; the running program continues");
        tracing::warn!("{message}");
        parts.server.reply(request.id, &Reply::Error { message });
    }
}

/// Returns only if that fails.
fn replace_program(
    Parts { oom, server, leases, log }: &Parts<'_>,
    UpgradeRequest { id, program }: &UpgradeRequest,
) -> anyhow::Result<Infallible> {
    let paused_ns = monotonic_ns();
    let requester = server.connection(*id).context("the client has closed its connection")?;
    let sockets = server.listeners();
    let descriptors = Descriptors {
        control: KeptFd::of(&sockets.all),
        control_of_root: sockets.root.as_ref().map(KeptFd::of),
        requester: KeptFd::of(&requester),
        leases: KeptFd::of(&leases.listener()),
    };
    let (kills, limits) = oom.save();
    let records = oom.records().save();
    let from = VERSION.to_owned();
    let watch = oom.accounts().watch().backend().into();
    let state =
        DaemonState { format: FORMAT, from, paused_ns, watch, descriptors, kills, limits, records };
    let file = StateFile::create(&serde_json::to_vec(&state).context("cannot write the state")?)?;
    program.check(&file, CHECK_LIMIT)?;
    log.flush();
    Err(upgrade::execute(program, &file, state.descriptors()))
}

/// What was taken over from the program before this one.
pub struct Resumed {
    /// Limits and kills.
    pub oom: TakenOver,
    /// Decisions and counters.
    pub records: SavedRecords,
    /// Sockets, and the client to reply to.
    pub sockets: Sockets,
}

/// Sockets that were taken over.
pub struct Sockets {
    control: control::Listeners<OwnedFd>,
    requester: OwnedFd,
    leases: OwnedFd,
    completion: Completion,
}

/// The sockets of a daemon that listens.
pub struct Listening {
    /// The control socket.
    pub server: Server,
    /// The lease socket, if it listens already.
    pub leases: Option<OwnedFd>,
    /// Present after an upgrade.
    pub completion: Option<Completion>,
}

impl Listening {
    /// Continues with the sockets of the program before this one, or binds new ones.
    pub fn start(path: &Path, mode: u32, sockets: Option<Sockets>) -> anyhow::Result<Self> {
        let Some(Sockets { control, requester, leases, completion }) = sockets else {
            return Ok(Self { server: Server::bind(path, mode)?, leases: None, completion: None });
        };
        let mut server = Server::from_listeners(path, control)?;
        let completion = Completion { requester: server.adopt(requester), ..completion };
        Ok(Self { server, leases: Some(leases), completion: Some(completion) })
    }
}

/// The reply to the client that has requested the upgrade.
pub fn reply(Upgraded { from, to, taken_over, pause_us }: Upgraded) -> Reply {
    Reply::Upgraded { from, to, kills: taken_over, pause_us }
}

/// Runs `--resume`: continues with the state in the descriptor `fd`. Must be called before any
/// thread is started.
pub fn resume(fd: i32) -> anyhow::Result<Resumed> {
    upgrade::restore_name();
    // The threads that are started next inherit the priority.
    leave_realtime(0);
    let DaemonState { from, paused_ns, descriptors, kills, limits, records, .. } =
        DaemonState::read(&StateFile::read(fd)?)?;
    // SAFETY: each descriptor occurs once in the verified state, which is used once.
    let take = |kept: KeptFd| unsafe { kept.take() }.context("cannot take over a descriptor");
    let control = control::Listeners {
        all: take(descriptors.control)?,
        root: descriptors.control_of_root.map(take).transpose()?,
    };
    let (requester, leases) = (take(descriptors.requester)?, take(descriptors.leases)?);
    // SAFETY: as above, and the kills are verified.
    let kills = unsafe { kills.take_over() }.context("cannot take over a pidfd")?;
    let completion = Completion { requester: None, from, paused_ns, taken_over: kills.count() };
    Ok(Resumed {
        oom: TakenOver { kills, limits },
        records,
        sockets: Sockets { control, requester, leases, completion },
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// The state of a daemon with a kill in flight, by a program with this format. The test
    /// `a_kill_in_flight_continues_with_pinned_accounts` writes that of the current format to the
    /// file that `HEADROOM_WRITE_STATE` names: only before its release.
    fn stored_state(format: u32) -> Vec<u8> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/states");
        std::fs::read(folder.join(format.to_string())).unwrap()
    }

    fn refusal(change: impl FnOnce(&mut Value)) -> String {
        let mut state: Value = serde_json::from_slice(&stored_state(FORMAT)).unwrap();
        change(&mut state);
        let read = DaemonState::read(&serde_json::to_vec(&state).unwrap());
        format!("{:#}", read.map(drop).unwrap_err())
    }

    #[test]
    fn states_of_released_formats_are_read() {
        for format in 1..=FORMAT {
            let state = DaemonState::read(&stored_state(format)).unwrap();
            assert_eq!(state.kills.descriptors().count(), 1, "format {format}");
            assert_eq!(state.limits.len(), 1, "format {format}");
        }
    }

    /// Whether a value has all fields of another one, with their values.
    fn has_all_of(value: &Value, of: &Value) -> bool {
        match (value, of) {
            (Value::Object(fields), Value::Object(of)) => of
                .iter()
                .all(|(name, of)| fields.get(name).is_some_and(|field| has_all_of(field, of))),
            (Value::Array(values), Value::Array(of)) => {
                values.len() == of.len() && values.iter().zip(of).all(|(a, b)| has_all_of(a, b))
            }
            (value, of) => value == of,
        }
    }

    #[test]
    fn the_format_keeps_its_fields_until_it_has_a_new_number() {
        let stored: Value = serde_json::from_slice(&stored_state(FORMAT)).unwrap();
        let state = DaemonState::read(&stored_state(FORMAT)).unwrap();
        let written = serde_json::to_value(&state).unwrap();
        assert!(has_all_of(&written, &stored), "{written}");
        // It was written before decisions had this field.
        let victim = &written["records"]["decisions"][0]["victim"];
        assert_eq!(victim["unmapped_bytes"], json!(0));
    }

    #[test]
    fn fields_that_a_later_program_has_added_are_ignored() {
        let mut state: Value = serde_json::from_slice(&stored_state(FORMAT)).unwrap();
        state["added"] = json!(1);
        state["kills"]["kills"]["kills"][0]["added"] = json!(2);
        let read = DaemonState::read(&serde_json::to_vec(&state).unwrap());
        assert_eq!(read.map(|state| state.limits.len()).unwrap(), 1);
    }

    #[test]
    fn later_formats_and_other_bytes_are_refused() {
        let later = refusal(|state| state["format"] = json!(FORMAT + 1));
        assert!(later.contains("reads format 1 at most: upgrade to a program"), "{later}");
        assert!(refusal(|state| *state = json!(7)).contains("this is not a state"));
        assert!(refusal(|state| state["kills"] = json!([])).contains("cannot be decoded"));
    }

    #[test]
    fn states_that_contradict_themselves_are_refused() {
        let twice = refusal(|state| {
            state["descriptors"]["leases"] = state["descriptors"]["control"].clone();
        });
        assert!(twice.contains("occurs twice"), "{twice}");
        let lost = refusal(|state| state["kills"]["victims"] = json!([]));
        assert!(lost.contains("has no pidfd"), "{lost}");
        let other = refusal(|state| state["kills"]["victims"][0]["token"] = json!(77));
        assert!(other.contains("is not the victim of kill 77"), "{other}");
        let kill = |change: fn(&mut Value)| refusal(|state| change(&mut state["kills"]["kills"]));
        let number = kill(|kills| kills["last_token"] = json!(0));
        assert!(number.contains("has the number of another one"), "{number}");
        let twice = kill(|kills| {
            let mut again = kills["kills"][0].clone();
            let last = kills["last_token"].as_u64().unwrap() + 1;
            (again["token"], kills["last_token"]) = (json!(last), json!(last));
            kills["kills"].as_array_mut().unwrap().push(again);
        });
        assert!(twice.contains("awaits two kills"), "{twice}");
        let latch = kill(|kills| {
            let latched = kills["latched"][0].clone();
            kills["latched"].as_array_mut().unwrap().push(latched);
        });
        assert!(latch.contains("a latch is taken twice"), "{latch}");
    }
}
