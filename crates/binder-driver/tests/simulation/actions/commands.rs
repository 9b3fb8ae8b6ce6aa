//! Random commands of the simulation.

use binder_driver::Caller;
use binder_uapi::*;

use super::{OBJECTS, Simulation, UPDATE_CODE};
use crate::client::Frame;
use crate::common::*;

impl Simulation {
    /// A command that may be invalid.
    pub(super) fn lying_command(&mut self, caller: Caller) -> Command {
        let handle = self.random.below(6) as u32;
        let ptr = self.random.below(OBJECTS);
        let cookie = self.random.below(3);
        let node = BinderPtrCookie { ptr, cookie: cookie_of(ptr) };
        let request = BinderHandleCookie { handle, cookie };
        let flags = self.random.below(2) as u32 * TF_ONE_WAY;
        let mut parcel = self.parcel(caller, 3);
        for offset in &mut parcel.offsets {
            if self.random.one_in(3) {
                *offset = offset.wrapping_add(self.random.next() >> self.random.below(64));
            }
        }
        let code = self.code();
        let (data, buffers_size) =
            self.world.transaction(caller, CallHead { handle, code, flags }, &parcel);
        let buffers = &self.clients[&caller.process].buffers;
        let addresses: Vec<_> = buffers.iter().map(|buffer| buffer.address).collect();
        let address = self.random.pick(&addresses).unwrap_or(0);
        match self.random.below(14) {
            0 => Command::Acquire(handle),
            1 => Command::IncRefs(handle),
            2 => Command::Release(handle),
            3 => Command::DecRefs(handle),
            4 => Command::AcquireDone(node),
            5 => Command::IncRefsDone(node),
            6 => Command::RequestDeathNotification(request),
            7 => Command::ClearDeathNotification(request),
            8 => Command::DeadBinderDone(cookie),
            9 => Command::FreeBuffer(address.wrapping_add(self.random.below(2) * 8)),
            10 => Command::Reply { data, buffers_size },
            11 => match self.random.below(3) {
                0 => Command::FreezeNotificationDone(cookie),
                1 => Command::RequestFreezeNotification(request),
                _ => Command::ClearFreezeNotification(request),
            },
            _ => Command::Transaction { data, buffers_size },
        }
    }

    fn code(&mut self) -> u32 {
        self.next_code += 1;
        self.next_code
    }

    /// A parcel with random contents: the client's own objects and its handles.
    fn parcel(&mut self, caller: Caller, most: u64) -> Parcel {
        let sizes = [0, 0, 3, 40, 600, 5_000];
        let size = self.random.pick(&sizes).unwrap_or(0);
        let mut parcel = Parcel::bytes(&vec![0xab; size]);
        let client = &self.clients[&caller.process];
        let (strong, any) = (client.strong_handles(), client.handles());
        for _ in 0..self.random.below(most + 1) {
            let ptr = 0x100 + self.random.below(OBJECTS);
            let accepts = if ptr.is_multiple_of(2) { FLAT_BINDER_FLAG_ACCEPTS_FDS } else { 0 };
            parcel = match self.random.below(5) {
                0 | 1 => parcel.object(&FlatBinderObject {
                    ty: BINDER_TYPE_BINDER,
                    flags: accepts,
                    binder: ptr,
                    cookie: cookie_of(ptr),
                }),
                3 => {
                    let file = self.random.below(100);
                    let fd = self.world.host.install(caller.process, file);
                    // One in ten is closed before the parcel is sent.
                    if self.random.one_in(10) {
                        self.world.host.tables.entry(caller.process).or_default().remove(&fd);
                    }
                    parcel.fd(fd)
                }
                2 => parcel.flat(BINDER_TYPE_WEAK_BINDER, ptr, cookie_of(ptr)),
                _ => match (self.random.pick(&strong), self.random.pick(&any)) {
                    (Some(handle), _) if self.random.one_in(2) => parcel.handle(handle),
                    (_, Some(handle)) => parcel.flat(BINDER_TYPE_WEAK_HANDLE, handle.into(), 0),
                    _ => parcel,
                },
            };
        }
        parcel
    }

    /// A valid command, if the drawn kind is possible now.
    pub(super) fn command(&mut self, caller: Caller) -> Option<Command> {
        let top = self.clients.get_mut(&caller.process)?.thread(caller.tid).frames.last().copied();
        match self.random.below(16) {
            0..4 if top != Some(Frame::Out) => {
                let oneway = self.random.one_in(3);
                let parcel = self.parcel(caller, 3);
                let strong = self.clients[&caller.process].strong_handles();
                let handle = self.random.pick(&strong).filter(|_| !self.random.one_in(3));
                let flags = if oneway { TF_ONE_WAY } else { TF_ACCEPT_FDS };
                let mut clear = if self.random.one_in(4) { TF_CLEAR_BUF } else { 0 };
                let (mut code, handle) = (self.code(), handle.unwrap_or(0));
                if oneway && self.random.one_in(6) {
                    // Such a call replaces an earlier one while the receiver is frozen.
                    (code, clear) = (UPDATE_CODE, TF_UPDATE_TXN);
                }
                let sent = self.world.transaction(
                    caller,
                    CallHead { handle, code, flags: flags | clear },
                    &parcel,
                );
                Some(Command::Transaction { data: sent.0, buffers_size: sent.1 })
            }
            4..8 if top == Some(Frame::In) => {
                let parcel = self.parcel(caller, 2);
                let (data, buffers_size) = self.world.transaction(
                    caller,
                    CallHead { handle: 0, code: 0, flags: 0 },
                    &parcel,
                );
                // At most one reply per call: the model is updated when it is sent.
                Some(Command::Reply { data, buffers_size })
            }
            8..12 => self.free_or_count(caller),
            12 | 13 => self.clients.get_mut(&caller.process)?.due.pop(),
            14 if self.random.one_in(2) => self.freeze_command(caller),
            14 => self.death_command(caller),
            _ => self.random.pick(&[
                Command::EnterLooper,
                Command::RegisterLooper,
                Command::ExitLooper,
            ]),
        }
    }

    fn free_or_count(&mut self, caller: Caller) -> Option<Command> {
        let client = self.clients.get_mut(&caller.process)?;
        let held: Vec<(u32, (u32, u32))> = client.held.iter().map(|(h, c)| (*h, *c)).collect();
        match self.random.below(12) {
            0 => {
                let handle = self.random.pick(&client.strong_handles())?;
                client.held.entry(handle).or_default().0 += 1;
                Some(Command::Acquire(handle))
            }
            1 => {
                let handle = self.random.pick(&client.handles())?;
                client.held.entry(handle).or_default().1 += 1;
                Some(Command::IncRefs(handle))
            }
            2 => {
                let (handle, (strong, _)) = self.random.pick(&held)?;
                (strong > 0).then(|| client.drop_strong(handle))?;
                Some(Command::Release(handle))
            }
            3 => {
                let (handle, (_, weak)) = self.random.pick(&held)?;
                (weak > 0).then(|| client.drop_weak(handle))?;
                Some(Command::DecRefs(handle))
            }
            _ if client.buffers.is_empty() => None,
            _ => {
                let at = self.random.below(client.buffers.len() as u64) as usize;
                let buffer = client.buffers.swap_remove(at);
                let left = client.handles();
                client.deaths.retain(|handle, _| left.contains(handle));
                Some(Command::FreeBuffer(buffer.address))
            }
        }
    }

    fn freeze_command(&mut self, caller: Caller) -> Option<Command> {
        let client = self.clients.get_mut(&caller.process)?;
        client.freezes.retain(|handle, _| client.held.contains_key(handle));
        let watched: Vec<(u32, u64)> = client.freezes.iter().map(|(h, c)| (*h, *c)).collect();
        if self.random.one_in(3) {
            let (handle, cookie) = self.random.pick(&watched)?;
            client.freezes.remove(&handle);
            return Some(Command::ClearFreezeNotification(BinderHandleCookie { handle, cookie }));
        }
        // The client's own counts keep the reference alive, and thereby the notification.
        let held: Vec<u32> = client.held.keys().copied().collect();
        let handle = self.random.pick(&held).filter(|h| !client.freezes.contains_key(h))?;
        self.next_cookie += 1;
        let cookie = self.next_cookie;
        client.freezes.insert(handle, cookie);
        client.freeze_cookies.insert(cookie, None);
        Some(Command::RequestFreezeNotification(BinderHandleCookie { handle, cookie }))
    }

    fn death_command(&mut self, caller: Caller) -> Option<Command> {
        let client = self.clients.get_mut(&caller.process)?;
        let watched: Vec<(u32, u64)> = client.deaths.iter().map(|(h, c)| (*h, *c)).collect();
        if self.random.one_in(3) {
            let (handle, cookie) = self.random.pick(&watched)?;
            client.deaths.remove(&handle);
            return Some(Command::ClearDeathNotification(BinderHandleCookie { handle, cookie }));
        }
        let handle = self.random.pick(&client.handles())?;
        if client.deaths.contains_key(&handle) {
            return None;
        }
        self.next_cookie += 1;
        let cookie = self.next_cookie;
        client.deaths.insert(handle, cookie);
        client.cookies.insert(cookie);
        Some(Command::RequestDeathNotification(BinderHandleCookie { handle, cookie }))
    }
}
