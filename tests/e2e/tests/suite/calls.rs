//! Successful operations: calls, replies, objects, order.

use std::sync::Mutex;
use std::thread;

use binder_client::{
    Answer, Call, Client, ClientError, Errno, Options, Parcel, Payload, Received, Served, Session,
    registry,
};
use binder_uapi::{BINDER_TYPE_BINDER, BINDER_TYPE_HANDLE, Return, TF_ACCEPT_FDS};
use e2e::Bus;

use crate::support::{CALL, OBJECT, expect_echo, find, manager, open, own_tid, peer, publish};

crate::both_mappings! {
    services_whose_main_thread_has_ended_get_calls
    an_echo_brings_back_every_byte_of_every_size
    a_buffer_stays_as_it_was_until_it_is_freed
    an_object_sent_away_comes_back_as_itself
    a_handle_works_in_the_process_that_received_it
    a_call_back_reaches_the_very_thread_that_waits
    oneway_calls_to_one_node_are_delivered_in_order
    a_status_code_is_carried_instead_of_data
    a_full_mapping_fails_the_call_and_heals_when_buffers_are_freed
    a_looper_is_requested_when_none_is_free
    the_receiver_gets_the_pid_and_uid_of_the_caller
    a_call_without_a_context_manager_is_dead
    the_three_devices_are_separate_contexts
}

fn an_echo_brings_back_every_byte_of_every_size(bus: &Bus) {
    let _manager = manager(bus);
    let client = open(bus);
    let mut session = Session::new(&client);
    let pattern: Vec<u8> = (0..400_000u32).map(|i| (i * 7 + i / 251) as u8).collect();
    for size in [0, 1, 4, 7, 8, 100, 4095, 4096, 4097, 16_384, 65_536, 100_001, 400_000] {
        expect_echo(&mut session, 0, &pattern[..size]);
        expect_echo(&mut session, 0, &pattern[pattern.len() - size..]);
    }
}

fn a_buffer_stays_as_it_was_until_it_is_freed(bus: &Bus) {
    let _manager = manager(bus);
    let client = open(bus);
    let mut session = Session::new(&client);
    let mut held: Vec<(Vec<u8>, Received<'_>)> = Vec::new();
    for round in 0..300usize {
        let data = vec![round as u8; round * 37 % 5000];
        let reply = session.call(0, CALL, Payload::bytes(&data)).unwrap();
        held.push((data, reply));
        if round % 3 == 0 {
            let (data, reply) = held.remove(round * 31 % held.len());
            assert_eq!(reply.data().unwrap(), data);
            session.free(reply);
        }
    }
    for (data, reply) in held {
        assert_eq!(reply.data().unwrap(), data);
        session.free(reply);
    }
    session.flush().unwrap();
}

fn an_object_sent_away_comes_back_as_itself(bus: &Bus) {
    let _manager = manager(bus);
    let client = open(bus);
    let mut session = Session::new(&client);
    session.enter_looper().unwrap();
    let parcel = Parcel::new().bytes(b"head").binder(0x1000, 0x2000).weak_binder(0x3000, 0x4000);
    let reply = session.call(0, CALL, parcel.payload()).unwrap();
    assert_eq!(reply.offsets().unwrap(), parcel.offsets);
    let objects = reply.objects().unwrap();
    assert_eq!(
        (objects[0].ty, objects[0].binder, objects[0].cookie),
        (BINDER_TYPE_BINDER, 0x1000, 0x2000)
    );
    assert_eq!((objects[1].binder, objects[1].cookie), (0x3000, 0x4000));
    session.free(reply);
    session.flush().unwrap();
    // The manager had references for a while; all of them were announced before the reply arrived
    // or are now, and are released again.
    let mut seen = (0, 0);
    while seen != (2, 2) {
        match session.wait_notice().unwrap() {
            Return::IncRefs(_) => seen.0 += 1,
            Return::DecRefs(_) => seen.1 += 1,
            Return::Acquire(node) | Return::Release(node) => assert_eq!(node.ptr, 0x1000),
            other => panic!("{other:?}"),
        }
    }
}

fn a_handle_works_in_the_process_that_received_it(bus: &Bus) {
    let _manager = manager(bus);
    let _service = peer(bus, &["echo", "service"]);
    let client = open(bus);
    let mut session = Session::new(&client);
    let handle = find(&mut session, "service");
    assert_ne!(handle, 0);
    expect_echo(&mut session, handle, b"straight to the service");
    // The same object has the same handle each time.
    assert_eq!(registry::find(&mut session, "service").unwrap(), Some(handle));
    assert_eq!(registry::find(&mut session, "nobody").unwrap(), None);
    session.release(handle);
    session.release(handle);
    session.flush().unwrap();
    let error = session.call(handle, CALL, Payload::default()).unwrap_err();
    assert_eq!(error, ClientError::FailedReply, "the handle is gone with its last reference");
}

fn a_call_back_reaches_the_very_thread_that_waits(bus: &Bus) {
    const CALL_BACK: u32 = 2;
    let _manager = manager(bus);
    let server = publish(bus, "server", &Options::default());
    let serving = thread::spawn(move || {
        let mut session = Session::new(&server);
        let mut depth = 0;
        // Calls back the object that it received, once for each byte of the message.
        let mut service = |session: &mut Session<'_>, incoming: &Received<'_>| {
            depth += 1;
            let object = incoming.objects().unwrap()[0];
            assert_eq!(object.ty, BINDER_TYPE_HANDLE);
            let parcel = Parcel::new().bytes(&incoming.data().unwrap()[..1]);
            let reply = session.call(object.handle(), CALL_BACK, parcel.payload()).unwrap();
            let answer = Parcel::new().bytes(reply.data().unwrap());
            session.free(reply);
            if depth == 3 { Answer::Stop(answer) } else { Answer::Reply(answer) }
        };
        session.serve(&mut service)
    });

    let client = open(bus);
    let mut session = Session::new(&client);
    let waits_here = own_tid();
    let handle = find(&mut session, "server");
    for round in 0..3u8 {
        let mut called_back = 0;
        let parcel = Parcel::new().bytes(&[round; 8]).binder(0xbac, 0);
        let call = Call { handle, code: CALL, flags: TF_ACCEPT_FDS, payload: parcel.payload() };
        let mut service = |_: &mut Session<'_>, incoming: &Received<'_>| {
            assert_eq!(own_tid(), waits_here);
            assert_eq!((incoming.code(), incoming.transaction().target), (CALL_BACK, 0xbac));
            called_back += 1;
            Answer::Reply(Parcel::new().bytes(&[incoming.data().unwrap()[0] + 100]))
        };
        let reply = session.call_with(call, &mut service).unwrap();
        assert_eq!(reply.data().unwrap(), [round + 100]);
        session.free(reply);
        assert_eq!(called_back, 1);
    }
    session.flush().unwrap();
    serving.join().unwrap().unwrap();
}

fn oneway_calls_to_one_node_are_delivered_in_order(bus: &Bus) {
    const CALLS: u32 = 300;
    let _manager = manager(bus);
    let server = publish(bus, "server", &Options::default());
    let order = Mutex::new(Vec::new());
    thread::scope(|scope| {
        // Several loopers would overtake each other if more than one call were pending at a time.
        for _ in 0..3 {
            let mut service = |_: &mut Session<'_>, incoming: &Received<'_>| {
                if !incoming.is_one_way() {
                    return Answer::Stop(Parcel::new());
                }
                assert_eq!(incoming.transaction().sender_pid, 0, "one-way calls name no sender");
                let number = incoming.data().unwrap().try_into().map(u32::from_ne_bytes).unwrap();
                thread::yield_now();
                order.lock().unwrap().push(number);
                Answer::Echo
            };
            let server = &server;
            scope.spawn(move || Session::new(server).serve(&mut service).unwrap());
        }
        let client = open(bus);
        let mut session = Session::new(&client);
        let handle = find(&mut session, "server");
        for number in 0..CALLS {
            session.oneway(handle, CALL, Payload::bytes(&number.to_ne_bytes())).unwrap();
        }
        let all_came = e2e::wait::until(e2e::wait::PATIENCE, || {
            (order.lock().unwrap().len() == CALLS as usize).then_some(())
        });
        for _ in 0..3 {
            let reply = session.call(handle, CALL, Payload::default()).unwrap();
            session.free(reply);
        }
        session.flush().unwrap();
        all_came.expect("not all one-way calls were delivered");
    });
    assert_eq!(order.into_inner().unwrap(), (0..CALLS).collect::<Vec<_>>());
}

fn a_status_code_is_carried_instead_of_data(bus: &Bus) {
    let _manager = manager(bus);
    let client = open(bus);
    let mut session = Session::new(&client);
    let reply = session.call(0, registry::GET, Payload::bytes(b"nobody")).unwrap();
    assert_eq!(reply.status().unwrap(), Some(-Errno::NOENT.raw_os_error()));
    session.free(reply);
    session.flush().unwrap();
}

fn a_full_mapping_fails_the_call_and_heals_when_buffers_are_freed(bus: &Bus) {
    let _manager = manager(bus);
    let options = Options { map_len: 128 * 1024, ..Options::default() };
    let client = Client::open(bus.device("binder"), &options).unwrap();
    let mut session = Session::new(&client);
    let data = vec![7; 30_000];
    let mut held = Vec::new();
    let error = loop {
        match session.call(0, CALL, Payload::bytes(&data)) {
            Ok(reply) => held.push(reply),
            Err(error) => break error,
        }
        assert!(held.len() < 6, "more is held than fits");
    };
    assert_eq!(error, ClientError::FailedReply);
    assert_eq!(held.len(), 4);
    held.drain(..).for_each(|reply| session.free(reply));
    session.flush().unwrap();
    let most = vec![8; 128 * 1024 - 64];
    expect_echo(&mut session, 0, &most);
}

fn a_looper_is_requested_when_none_is_free(bus: &Bus) {
    let options = Options { max_threads: 1, ..Options::default() };
    let _manager = manager(bus);
    let server = publish(bus, "server", &options);
    let device = bus.device("binder");
    thread::scope(|scope| {
        let calling = scope.spawn(move || {
            let client = Client::open(device, &Options::default()).unwrap();
            let mut session = Session::new(&client);
            let handle = find(&mut session, "server");
            expect_echo(&mut session, handle, b"to the busy looper");
        });
        let mut session = Session::new(&server);
        session.enter_looper().unwrap();
        let first = session.receive().unwrap();
        assert_eq!(first, Return::SpawnLooper, "the only looper is about to be busy");
        let second = session.receive().unwrap();
        let Return::Transaction(data) = second else { panic!("{second:?}") };
        assert_eq!(data.target, OBJECT);
        let registered = scope.spawn(|| {
            let mut session = Session::new(&server);
            session.register_looper()?;
            session.exit_looper()
        });
        registered.join().unwrap().unwrap();
        session.push(binder_uapi::Command::Reply {
            data: binder_uapi::BinderTransactionData {
                data_size: data.data_size,
                buffer: data.buffer,
                ..Default::default()
            },
            buffers_size: None,
        });
        session.push(binder_uapi::Command::FreeBuffer(data.buffer));
        session.flush().unwrap();
        calling.join().unwrap();
    });
}

fn the_receiver_gets_the_pid_and_uid_of_the_caller(bus: &Bus) {
    let server = open(bus);
    server.become_context_manager().unwrap();
    let mut callers =
        [("root", None), ("an unprivileged user", Some("65534"))].map(|(who, uid)| {
            let arguments = uid.map_or(vec!["call", "manager"], |uid| vec!["whoami", uid]);
            (who, uid, arguments)
        });
    // As an administrator of a device does: the devices belong to root at first.
    std::fs::set_permissions(
        bus.device("binder"),
        std::os::unix::fs::PermissionsExt::from_mode(0o666),
    )
    .unwrap();
    let mut session = Session::new(&server);
    session.enter_looper().unwrap();
    for (who, uid, arguments) in &mut callers {
        let mut caller = peer(bus, arguments);
        let mut seen = None;
        let mut service = |_: &mut Session<'_>, incoming: &Received<'_>| {
            let transaction = incoming.transaction();
            seen = Some((transaction.sender_pid, transaction.sender_euid));
            Answer::Echo
        };
        while session.serve_one(&mut service).unwrap() != Served::Transaction {}
        session.flush().unwrap();
        let uid = uid.map_or(0, |uid| uid.parse().unwrap());
        assert_eq!(seen, Some((caller.pid() as i32, uid)), "{who}");
        caller.expect("answered");
        caller.wait_for_success();
    }
}

fn a_call_without_a_context_manager_is_dead(bus: &Bus) {
    let client = open(bus);
    let mut session = Session::new(&client);
    let error = session.call(0, CALL, Payload::default()).unwrap_err();
    assert_eq!(error, ClientError::DeadReply);
}

fn the_three_devices_are_separate_contexts(bus: &Bus) {
    let clients = ["binder", "hwbinder", "vndbinder"].map(|name| {
        let client = Client::open(bus.device(name), &Options::default()).unwrap();
        client.become_context_manager().unwrap();
        client
    });
    let devices = bus.ls().unwrap();
    for name in ["binder", "hwbinder", "vndbinder"] {
        let device = devices.iter().find(|device| device.name == name).unwrap();
        assert_eq!(device.manager, Some(std::process::id()), "{name}");
        assert_eq!(device.processes.len(), 1, "{name}");
    }
    drop(clients);
    let _manager = manager(bus);
    let other = Client::open(bus.device("hwbinder"), &Options::default()).unwrap();
    let error = Session::new(&other).call(0, CALL, Payload::default()).unwrap_err();
    assert_eq!(error, ClientError::DeadReply, "a manager serves its own device only");
}

fn services_whose_main_thread_has_ended_get_calls(bus: &Bus) {
    for opened in ["by-main", "by-thread"] {
        let _service = peer(bus, &["without-main-thread", opened]);
        let client = open(bus);
        let mut session = Session::new(&client);
        for data in [b"first", b"again"] {
            expect_echo(&mut session, 0, data);
        }
    }
}
