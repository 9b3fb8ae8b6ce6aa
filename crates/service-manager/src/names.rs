//! What is registered, who waits for it, and who may register.

use std::collections::BTreeMap;

use owners::Uid;

/// Names and callbacks of one user. Android has some hundreds of services.
pub const MOST_OF_USER: usize = 1_000;
/// Length of a name, bytes, as in Android.
const LONGEST: usize = 127;

/// An object of another process. The manager holds a strong reference while it is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its handle.
    pub handle: u32,
    /// The word after it in parcels of Android 11 and later, returned as it came.
    pub stability: i32,
}

/// Who makes a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Its process in the manager's namespace; 0 if that cannot see it.
    pub pid: i32,
    /// Its effective user.
    pub uid: Uid,
}

impl Caller {
    /// Whether it is the same process, as far as the manager sees it.
    pub(crate) fn is(self, other: Self) -> bool {
        self == other && self.pid != 0
    }
}

/// Reason for refusing a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No name, or one with other characters than letters, digits and `-._/@:`.
    Name,
    /// Another user may register it.
    Access,
    /// The user has registered [`MOST_OF_USER`] already.
    Quota,
    /// It names another object.
    Other,
    /// Another process has registered the service.
    NotOwner,
    /// The service has clients, or may get one.
    InUse,
}

/// Which users may register a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// A name, or its begin and `*`.
    pub pattern: String,
    /// The users.
    pub users: Vec<Uid>,
}

impl Rule {
    fn matches(&self, name: &str) -> bool {
        match self.pattern.strip_suffix('*') {
            Some(begin) => name.starts_with(begin),
            None => name == self.pattern,
        }
    }
}

/// Who may register which names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Every client of the bus any name.
    #[default]
    All,
    /// As the first rule that matches the name says; otherwise nobody.
    Rules(Vec<Rule>),
}

impl Access {
    /// The names of rules without `*`: services that are to be there.
    pub fn declared(&self) -> impl Iterator<Item = &str> {
        let rules = match self {
            Self::All => &[],
            Self::Rules(rules) => rules.as_slice(),
        };
        rules.iter().map(|rule| rule.pattern.as_str()).filter(|pattern| !pattern.ends_with('*'))
    }

    fn permits(&self, name: &str, uid: Uid) -> bool {
        match self {
            Self::All => true,
            Self::Rules(rules) => {
                let rule = rules.iter().find(|rule| rule.matches(name));
                rule.is_some_and(|rule| rule.users.contains(&uid))
            }
        }
    }
}

/// A registered object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    /// The object.
    pub object: Object,
    /// Who has registered it.
    pub owner: Caller,
    /// Whether it has clients, as its client callbacks were told last.
    pub(crate) clients: Clients,
    /// A client may have got it since its clients were counted.
    pub(crate) handed_out: bool,
}

/// Whether a service has clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clients {
    /// None.
    None,
    /// One or more.
    Some,
}

/// Calls of client callbacks to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientsChange {
    /// The service.
    pub service: Object,
    /// Whether it has clients now.
    pub clients: Clients,
    /// Who is told.
    pub callbacks: Vec<Object>,
}

/// An object to be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Callback {
    pub object: Object,
    pub owner: Uid,
}

/// Change of the references that the manager holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reference {
    /// Acquire it, and ask for the notification of its death.
    Take(Held),
    /// Withdraw that, and release it.
    Drop(Held),
}

/// A handle that the manager holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// The handle. The driver gives its number to another object once it is released.
    pub handle: u32,
    /// The cookie of its notification, which is of no other handle.
    pub cookie: u64,
}

/// The uses of a handle.
#[derive(Clone, Copy, Debug)]
struct Uses {
    count: usize,
    cookie: u64,
}

/// The names of one device.
#[derive(Debug, Default)]
pub struct Names {
    access: Access,
    pub(crate) services: BTreeMap<String, Service>,
    /// Of clients that wait for a name.
    callbacks: BTreeMap<String, Vec<Callback>>,
    /// Of services, by their names.
    pub(crate) client_callbacks: BTreeMap<String, Vec<Callback>>,
    uses: BTreeMap<u32, Uses>,
    last_cookie: u64,
    /// Changes that the caller has to make.
    references: Vec<Reference>,
    /// Calls that the caller has to make.
    pub(crate) changes: Vec<ClientsChange>,
}

impl Names {
    /// No names yet.
    pub fn new(access: Access) -> Self {
        Self { access, ..Self::default() }
    }

    /// The changes of references since the last call, oldest first.
    pub fn take_references(&mut self) -> Vec<Reference> {
        std::mem::take(&mut self.references)
    }

    pub(crate) fn hold(&mut self, handle: u32) {
        if let Some(uses) = self.uses.get_mut(&handle) {
            uses.count += 1;
            return;
        }
        self.last_cookie += 1;
        let cookie = self.last_cookie;
        self.uses.insert(handle, Uses { count: 1, cookie });
        self.references.push(Reference::Take(Held { handle, cookie }));
    }

    pub(crate) fn let_go(&mut self, handle: u32) {
        let Some(uses) = self.uses.get_mut(&handle) else { return };
        uses.count -= 1;
        if uses.count == 0 {
            let cookie = uses.cookie;
            self.uses.remove(&handle);
            self.references.push(Reference::Drop(Held { handle, cookie }));
        }
    }

    fn count_of(&self, uid: Uid) -> usize {
        let services = self.services.values().filter(|service| service.owner.uid == uid).count();
        let callbacks = self.callbacks.values().chain(self.client_callbacks.values()).flatten();
        services + callbacks.filter(|callback| callback.owner == uid).count()
    }

    pub(crate) fn check_quota(&self, uid: Uid) -> Result<(), Refusal> {
        if self.count_of(uid) < MOST_OF_USER { Ok(()) } else { Err(Refusal::Quota) }
    }

    /// Whether an administrator's rule names this service.
    pub fn is_declared(&self, name: &str) -> bool {
        self.access.declared().any(|declared| declared == name)
    }

    /// The declared instances of an interface.
    pub fn declared_instances(&self, interface: &str) -> Vec<&str> {
        let split = self.access.declared().filter_map(|name| name.split_once('/'));
        split.filter(|(of, _)| *of == interface).map(|(_, instance)| instance).collect()
    }

    /// Registers an object, in place of one that has the name. Returns who waits for it.
    pub fn add(
        &mut self,
        name: &str,
        object: Object,
        owner: Caller,
    ) -> Result<Vec<Object>, Refusal> {
        Ok(self.add_all(&[name], object, owner)?.concat())
    }

    /// Registers an object under all of these names, or under none. Returns who waits for each.
    pub fn add_all(
        &mut self,
        all: &[impl AsRef<str>],
        object: Object,
        owner: Caller,
    ) -> Result<Vec<Vec<Object>>, Refusal> {
        let names = || all.iter().map(AsRef::as_ref);
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-._/@:".contains(c);
        let is_name =
            |name: &str| (1..=LONGEST).contains(&name.len()) && name.chars().all(is_allowed);
        if !names().all(is_name) {
            return Err(Refusal::Name);
        }
        if !names().all(|name| self.access.permits(name, owner.uid)) {
            return Err(Refusal::Access);
        }
        let is_own = |name: &str| self.get(name).is_some_and(|it| it.owner.uid == owner.uid);
        let more = names().filter(|name| !is_own(name)).count();
        if more > 0 && self.count_of(owner.uid) + more > MOST_OF_USER {
            return Err(Refusal::Quota);
        }
        for name in names() {
            self.hold(object.handle);
            let is_same = |it: &Service| it.object.handle == object.handle && it.owner == owner;
            let clients = self.get(name).filter(is_same).map(|before| before.clients);
            match clients {
                Some(_) => self.let_go(object.handle),
                None => self.remove(name),
            }
            // Whoever has waited for it may become its client.
            let clients = clients.unwrap_or(Clients::None);
            let service = Service { object, owner, clients, handed_out: true };
            self.services.insert(name.to_owned(), service);
        }
        Ok(names().map(|name| self.waiting(name)).collect())
    }

    /// Removes a service with its client callbacks.
    pub(crate) fn remove(&mut self, name: &str) {
        if let Some(service) = self.services.remove(name) {
            self.let_go(service.object.handle);
        }
        for callback in self.client_callbacks.remove(name).unwrap_or_default() {
            self.let_go(callback.object.handle);
        }
    }

    /// The object with this name.
    pub fn get(&self, name: &str) -> Option<Service> {
        self.services.get(name).copied()
    }

    /// All names in their order, with their objects.
    pub fn list(&self) -> impl Iterator<Item = (&str, Service)> {
        self.services.iter().map(|(name, service)| (name.as_str(), *service))
    }

    /// Calls an object at each registration of a name from now on. Returns the object that has the
    /// name now.
    pub fn watch(
        &mut self,
        name: &str,
        callback: Object,
        owner: Uid,
    ) -> Result<Option<Service>, Refusal> {
        self.check_quota(owner)?;
        self.hold(callback.handle);
        let callback = Callback { object: callback, owner };
        self.callbacks.entry(name.to_owned()).or_default().push(callback);
        Ok(self.hand_out(name))
    }

    /// The callbacks of a name.
    pub fn waiting(&self, name: &str) -> Vec<Object> {
        let waiting = self.callbacks.get(name).into_iter().flatten();
        waiting.map(|callback| callback.object).collect()
    }

    /// Withdraws a callback.
    pub fn unwatch(&mut self, name: &str, callback: Object) -> Result<(), Refusal> {
        let waiting = self.callbacks.get_mut(name).ok_or(Refusal::Other)?;
        let at = waiting.iter().position(|it| it.object.handle == callback.handle);
        waiting.remove(at.ok_or(Refusal::Other)?);
        if waiting.is_empty() {
            self.callbacks.remove(name);
        }
        self.let_go(callback.handle);
        Ok(())
    }

    /// The process with an object has died. A notification that was withdrawn meanwhile has no
    /// effect.
    pub fn die(&mut self, cookie: u64) {
        let dead = self.uses.iter().find(|(_, uses)| uses.cookie == cookie);
        let Some(handle) = dead.map(|(handle, _)| *handle) else { return };
        let ended = self.services.iter().filter(|(_, it)| it.object.handle == handle);
        let ended: Vec<String> = ended.map(|(name, _)| name.clone()).collect();
        ended.iter().for_each(|name| self.remove(name));
        for callbacks in [&mut self.callbacks, &mut self.client_callbacks] {
            callbacks.retain(|_, waiting| {
                waiting.retain(|callback| callback.object.handle != handle);
                !waiting.is_empty()
            });
        }
        if self.uses.remove(&handle).is_some() {
            self.references.push(Reference::Drop(Held { handle, cookie }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALICE: Caller = Caller { pid: 7, uid: Uid(1000) };
    const BOB: Caller = Caller { pid: 8, uid: Uid(1001) };

    fn object(handle: u32) -> Object {
        Object { handle, stability: 12 }
    }

    fn take(handle: u32, cookie: u64) -> Reference {
        Reference::Take(Held { handle, cookie })
    }

    fn give_up(handle: u32, cookie: u64) -> Reference {
        Reference::Drop(Held { handle, cookie })
    }

    #[test]
    fn a_late_notification_concerns_no_object_that_got_the_number_since() {
        let mut names = Names::default();
        names.add("a", object(1), ALICE).unwrap();
        names.add("a", object(2), ALICE).unwrap();
        assert_eq!(names.take_references(), [take(1, 1), take(2, 2), give_up(1, 1)]);
        // The driver gives number 1 to another object; the first one had died before.
        names.add("b", object(1), BOB).unwrap();
        names.die(1);
        assert!(names.get("b").is_some());
        names.die(3);
        assert_eq!(names.get("b"), None);
    }

    #[test]
    fn a_reference_is_held_once_for_all_names_of_an_object() {
        let mut names = Names::default();
        assert_eq!(names.add("a", object(1), ALICE), Ok(vec![]));
        assert_eq!(names.add("b", object(1), ALICE), Ok(vec![]));
        assert_eq!(names.take_references(), [take(1, 1)]);
        assert_eq!(names.add("a", object(2), BOB), Ok(vec![]));
        assert_eq!(names.take_references(), [take(2, 2)]);
        assert_eq!(names.add("b", object(2), BOB), Ok(vec![]));
        assert_eq!(names.take_references(), [give_up(1, 1)]);
        assert_eq!(names.get("a").unwrap().owner, BOB);
        names.die(2);
        assert_eq!(names.take_references(), [give_up(2, 2)]);
        assert_eq!((names.get("a"), names.list().count()), (None, 0));
    }

    #[test]
    fn those_that_wait_are_told_until_they_withdraw_or_die() {
        let mut names = Names::default();
        assert_eq!(names.watch("a", object(5), BOB.uid), Ok(None));
        assert_eq!(names.watch("a", object(6), BOB.uid), Ok(None));
        assert_eq!(names.add("a", object(1), ALICE), Ok(vec![object(5), object(6)]));
        assert_eq!(names.watch("a", object(7), BOB.uid).unwrap().unwrap().object, object(1));
        assert_eq!(names.unwatch("a", object(5)), Ok(()));
        assert_eq!(names.unwatch("a", object(5)), Err(Refusal::Other));
        names.die(2);
        assert_eq!(names.add("a", object(2), ALICE), Ok(vec![object(7)]));
        let dropped = [give_up(5, 1), give_up(6, 2), give_up(1, 3)];
        let changes = names.take_references();
        let drops = changes.iter().filter(|change| matches!(change, Reference::Drop(_)));
        assert_eq!(drops.copied().collect::<Vec<_>>(), dropped);
    }

    #[test]
    fn names_follow_androids_rules_and_those_of_the_administrator() {
        let mut names = Names::default();
        for bad in ["", "a b", "a\n", "ä", &"x".repeat(128)] {
            assert_eq!(names.add(bad, object(1), ALICE), Err(Refusal::Name), "{bad}");
        }
        assert!(names.add("android.hardware.radio@1.0::IRadio/slot-1", object(1), ALICE).is_ok());
        let rule = |pattern: &str, users: &[Uid]| Rule {
            pattern: pattern.to_owned(),
            users: users.to_vec(),
        };
        let rules = vec![rule("a.own", &[BOB.uid]), rule("a.*", &[ALICE.uid])];
        let mut names = Names::new(Access::Rules(rules));
        assert!(names.add("a.x", object(1), ALICE).is_ok());
        assert_eq!(names.add("a.own", object(1), ALICE), Err(Refusal::Access));
        assert!(names.add("a.own", object(1), BOB).is_ok());
        assert_eq!(names.add("b", object(1), BOB), Err(Refusal::Access));
    }

    #[test]
    fn a_user_has_a_quota_of_names_and_callbacks_together() {
        let mut names = Names::default();
        for number in 0..MOST_OF_USER - 1 {
            names.add(&format!("n{number}"), object(1), ALICE).unwrap();
        }
        assert_eq!(names.watch("x", object(2), ALICE.uid), Ok(None));
        assert_eq!(names.add("another", object(1), ALICE), Err(Refusal::Quota));
        assert_eq!(names.watch("x", object(3), ALICE.uid), Err(Refusal::Quota));
        assert!(names.add("n0", object(4), ALICE).is_ok(), "it replaces its own");
        assert!(names.add("another", object(1), BOB).is_ok());
        names.die(2);
        assert!(names.add("one.more", object(1), ALICE).is_ok());
    }
}
