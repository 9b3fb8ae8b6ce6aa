//! Client callbacks: a service that ends while nobody uses it is told whether it has clients.
//!
//! A client is a process other than the manager that has a strong reference to the service. The
//! driver counts those; the callers of this module ask it.

use crate::names::{Callback, Caller, Clients, ClientsChange, Names, Object, Refusal, Service};

/// References of the manager itself.
const OF_MANAGER: u32 = 1;
/// The service asks while it handles a callback, whose buffer has a reference to it.
const OF_CALLBACK: u32 = 1;

/// Strong references to a handle's object, as the driver counts them.
pub type StrongCount<'f> = &'f dyn Fn(u32) -> u32;

impl Names {
    /// The object with this name, for a client: its callbacks are called at once, so that no client
    /// comes and goes unnoticed.
    pub fn hand_out(&mut self, name: &str) -> Option<Service> {
        self.services.get_mut(name)?.handed_out = true;
        self.set_clients(name, Clients::Some);
        self.get(name)
    }

    /// Whether a service ends while it has no clients.
    pub fn is_lazy(&self, name: &str) -> bool {
        self.client_callbacks.contains_key(name)
    }

    /// Whether there is such a service.
    pub fn has_lazy_services(&self) -> bool {
        !self.client_callbacks.is_empty()
    }

    /// The names of all such services.
    pub fn lazy_services(&self) -> Vec<String> {
        self.client_callbacks.keys().cloned().collect()
    }

    /// Calls an object when a service gets its first client or loses its last one. Only the process
    /// that has registered the service may have that.
    pub fn register_client_callback(
        &mut self,
        name: &str,
        service: Object,
        callback: Object,
        caller: Caller,
    ) -> Result<(), Refusal> {
        let clients = self.owned(name, service, caller)?.clients;
        self.check_quota(caller.uid)?;
        self.hold(callback.handle);
        let registered = Callback { object: callback, owner: caller.uid };
        self.client_callbacks.entry(name.to_owned()).or_default().push(registered);
        if clients == Clients::Some {
            self.changes.push(ClientsChange { service, clients, callbacks: vec![callback] });
        }
        Ok(())
    }

    /// Withdraws a client callback, of one service or of all that the caller has registered.
    pub fn unregister_client_callback(
        &mut self,
        service: Option<Object>,
        callback: Object,
        caller: Caller,
    ) -> Result<(), Refusal> {
        let mut removed = 0;
        let services = &self.services;
        self.client_callbacks.retain(|name, callbacks| {
            let is_meant = services.get(name).is_some_and(|it| {
                it.owner.is(caller) && service.is_none_or(|one| one.handle == it.object.handle)
            });
            let before = callbacks.len();
            callbacks.retain(|it| !is_meant || it.object.handle != callback.handle);
            removed += before - callbacks.len();
            !callbacks.is_empty()
        });
        (0..removed).for_each(|_| self.let_go(callback.handle));
        if removed > 0 { Ok(()) } else { Err(Refusal::Other) }
    }

    /// Withdraws a service that has no clients, for the process that has registered it. One without
    /// a client callback is taken to have some, as in Android.
    pub fn try_unregister(
        &mut self,
        name: &str,
        service: Object,
        caller: Caller,
        strong: StrongCount<'_>,
    ) -> Result<(), Refusal> {
        let found = self.owned(name, service, caller)?;
        let is_unused = self.is_lazy(name) && !found.handed_out && found.clients == Clients::None;
        if !is_unused || strong(found.object.handle) > OF_MANAGER + OF_CALLBACK {
            return Err(Refusal::InUse);
        }
        self.remove(name);
        Ok(())
    }

    /// Records the number of strong references to a lazy service. One that was handed out since the
    /// last time had a client meanwhile.
    pub fn observe(&mut self, name: &str, strong: u32) {
        let Some(service) = self.services.get_mut(name) else { return };
        let is_used = std::mem::take(&mut service.handed_out) || strong > OF_MANAGER;
        self.set_clients(name, if is_used { Clients::Some } else { Clients::None });
    }

    /// The calls of client callbacks since the last call, oldest first.
    pub fn take_changes(&mut self) -> Vec<ClientsChange> {
        std::mem::take(&mut self.changes)
    }

    fn set_clients(&mut self, name: &str, clients: Clients) {
        let Some(callbacks) = self.client_callbacks.get(name) else { return };
        let Some(service) = self.services.get_mut(name) else { return };
        if service.clients != clients {
            service.clients = clients;
            let callbacks = callbacks.iter().map(|callback| callback.object).collect();
            self.changes.push(ClientsChange { service: service.object, clients, callbacks });
        }
    }

    fn owned(&self, name: &str, object: Object, caller: Caller) -> Result<Service, Refusal> {
        let found = self.get(name).filter(|it| it.object.handle == object.handle);
        let found = found.ok_or(Refusal::Other)?;
        if found.owner.is(caller) { Ok(found) } else { Err(Refusal::NotOwner) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::{MOST_OF_USER, Reference};
    use owners::Uid;

    const SERVER: Caller = Caller { pid: 7, uid: Uid(1000) };
    const SAME_USER: Caller = Caller { pid: 8, uid: Uid(1000) };
    const UNSEEN: Caller = Caller { pid: 0, uid: Uid(1000) };
    const SERVICE: Object = object(1);
    const CALLBACK: Object = object(2);

    const fn object(handle: u32) -> Object {
        Object { handle, stability: 12 }
    }

    /// A service "a" with a callback.
    fn lazy() -> Names {
        let mut names = Names::default();
        names.add("a", SERVICE, SERVER).unwrap();
        names.register_client_callback("a", SERVICE, CALLBACK, SERVER).unwrap();
        names.take_references();
        names
    }

    fn told(names: &mut Names) -> Vec<Clients> {
        let told = |change: ClientsChange| {
            assert_eq!((change.service, change.callbacks), (SERVICE, vec![CALLBACK]));
            change.clients
        };
        names.take_changes().into_iter().map(told).collect()
    }

    #[test]
    fn a_service_is_told_of_its_first_client_and_after_the_last_one() {
        let mut names = lazy();
        assert_eq!(told(&mut names), []);
        names.observe("a", 1);
        assert_eq!(told(&mut names), [Clients::Some], "somebody may wait for it");
        names.observe("a", 1);
        assert_eq!(told(&mut names), [Clients::None], "nobody came");
        names.observe("a", 1);
        assert_eq!(told(&mut names), []);
        assert_eq!(names.hand_out("a").unwrap().object, SERVICE);
        assert_eq!(told(&mut names), [Clients::Some]);
        names.hand_out("a");
        // The client may have gone since.
        names.observe("a", 1);
        names.observe("a", 2);
        assert_eq!(told(&mut names), []);
        names.observe("a", 1);
        assert_eq!(told(&mut names), [Clients::None]);
        names.observe("a", 2);
        assert_eq!(told(&mut names), [Clients::Some], "of another process than the manager");
        names.register_client_callback("a", SERVICE, CALLBACK, SERVER).unwrap();
        assert_eq!(told(&mut names), [Clients::Some], "one that comes later");
        assert_eq!((names.hand_out("b"), told(&mut names)), (None, vec![]));
    }

    #[test]
    fn only_the_process_of_the_service_has_callbacks() {
        let mut names = lazy();
        for stranger in [SAME_USER, UNSEEN] {
            let refused = names.register_client_callback("a", SERVICE, object(3), stranger);
            assert_eq!(refused, Err(Refusal::NotOwner));
            assert_eq!(
                names.try_unregister("a", SERVICE, stranger, &|_| 1),
                Err(Refusal::NotOwner)
            );
            let refused = names.unregister_client_callback(None, CALLBACK, stranger);
            assert_eq!(refused, Err(Refusal::Other));
        }
        let refused = names.register_client_callback("a", object(3), CALLBACK, SERVER);
        assert_eq!(refused, Err(Refusal::Other));
        names.add("unseen", object(4), UNSEEN).unwrap();
        let refused = names.register_client_callback("unseen", object(4), CALLBACK, UNSEEN);
        assert_eq!(refused, Err(Refusal::NotOwner), "0 is any process");
    }

    #[test]
    fn a_service_is_withdrawn_only_while_it_has_no_clients() {
        let mut names = lazy();
        let unregister = |names: &mut Names, strong| {
            names.try_unregister("a", SERVICE, SERVER, &|handle| {
                assert_eq!(handle, SERVICE.handle);
                strong
            })
        };
        assert_eq!(unregister(&mut names, 1), Err(Refusal::InUse), "somebody may wait for it");
        names.observe("a", 1);
        assert_eq!(unregister(&mut names, 1), Err(Refusal::InUse), "it was told of clients");
        names.observe("a", 1);
        assert_eq!(unregister(&mut names, 3), Err(Refusal::InUse));
        assert_eq!(unregister(&mut names, u32::MAX), Err(Refusal::InUse), "no count");
        names.hand_out("a");
        assert_eq!(unregister(&mut names, 2), Err(Refusal::InUse));
        names.observe("a", 1);
        names.observe("a", 1);
        assert_eq!(unregister(&mut names, 2), Ok(()));
        assert_eq!((names.get("a"), names.is_lazy("a")), (None, false));
        let dropped = names.take_references();
        assert_eq!(dropped.len(), 2);
        assert!(dropped.iter().all(|change| matches!(change, Reference::Drop(_))));
        assert_eq!(unregister(&mut names, 1), Err(Refusal::Other));
        names.add("b", SERVICE, SERVER).unwrap();
        names.observe("b", 1);
        let refused = names.try_unregister("b", SERVICE, SERVER, &|_| 1);
        assert_eq!(refused, Err(Refusal::InUse), "it has no callback");
    }

    #[test]
    fn callbacks_end_with_their_service_or_their_own_process() {
        let mut names = lazy();
        // The cookies are those of the handles in the order of their first use.
        names.die(2);
        assert!(!names.is_lazy("a") && names.get("a").is_some());
        let mut names = lazy();
        names.die(1);
        assert!(!names.is_lazy("a") && names.get("a").is_none());
        assert_eq!(names.take_references().len(), 2, "of the callback, too");
        let mut names = lazy();
        names.add("a", SERVICE, SERVER).unwrap();
        assert!(names.is_lazy("a"), "the same again");
        names.add("a", object(5), SAME_USER).unwrap();
        assert!(!names.is_lazy("a"), "another one");
        let mut names = Names::default();
        names.add("a", SERVICE, SERVER).unwrap();
        names.register_client_callback("a", SERVICE, SERVICE, SERVER).unwrap();
        names.take_references();
        names.die(1);
        assert_eq!(names.take_references().len(), 1, "a service that is its own callback");
        let mut names = lazy();
        assert_eq!(names.unregister_client_callback(Some(SERVICE), CALLBACK, SERVER), Ok(()));
        assert_eq!((names.is_lazy("a"), names.take_references().len()), (false, 1));
        let again = names.unregister_client_callback(None, CALLBACK, SERVER);
        assert_eq!(again, Err(Refusal::Other));
    }

    #[test]
    fn client_callbacks_count_for_the_quota_of_the_user() {
        let mut names = lazy();
        let mut register = || names.register_client_callback("a", SERVICE, CALLBACK, SERVER);
        for _ in 2..MOST_OF_USER {
            assert_eq!(register(), Ok(()));
        }
        assert_eq!(register(), Err(Refusal::Quota));
        assert_eq!(names.add("more", SERVICE, SERVER), Err(Refusal::Quota));
    }
}
