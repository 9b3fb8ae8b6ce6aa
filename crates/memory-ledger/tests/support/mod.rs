//! The rules of a decision about one account combined as in the OOM manager.

use memory_ledger::{
    AccountId, ChargedAccount, Choice, KillToken, KillsInFlight, Ledger, NewKill, NoVictim, Phase,
    Process, Scope, Sender, Signal, choose,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No limit, or within it.
    Within,
    /// Above the limit, but a victim's memory is not back yet.
    Wait,
    Kill(Box<Choice>),
    NoVictim(NoVictim),
}

#[derive(Default)]
pub struct Engine {
    pub ledger: Ledger,
    pub kills: KillsInFlight,
}

impl Engine {
    pub fn decide(&self, id: AccountId, processes: &[Process], protected: &[u32]) -> Verdict {
        if self.ledger.account(id).is_none_or(|account| account.phase() != Phase::Broken) {
            return Verdict::Within;
        }
        if !self.kills.may_kill(id) {
            return Verdict::Wait;
        }
        let passed_over = self.kills.stuck();
        let scope = Scope { account: Some(id), passed_over, ..Scope::default() };
        let mut processes = processes.to_vec();
        for process in &mut processes {
            process.exiting |= self.kills.contains(process.id);
        }
        match choose(&scope, &processes, protected) {
            Ok(choice) => Verdict::Kill(Box::new(choice)),
            Err(none) => Verdict::NoVictim(none),
        }
    }

    /// The daemon sends SIGKILL.
    pub fn kill(&mut self, victim: &Process, at_ns: u64) -> KillToken {
        let account = victim.account;
        let used_bytes = self.ledger.account(account).map(|it| it.reading().used_bytes);
        let (token, _) = self.kills.signalled(NewKill {
            victim: victim.id,
            bytes: victim.charged_bytes(),
            sender: Sender::Daemon,
            signal: Signal::Kill,
            at_ns,
            payer: ChargedAccount { account, used_bytes },
            cgroup: None,
        });
        token
    }
}
