//! Properties of the command and return streams.

use binder_uapi::command::*;
use binder_uapi::ioctl::payload_len;
use binder_uapi::returns::*;
use binder_uapi::*;
use proptest::collection::vec;
use proptest::prelude::*;

fn transaction_data() -> impl Strategy<Value = BinderTransactionData> {
    let words = (any::<[u64; 6]>(), any::<[u32; 3]>(), any::<i32>());
    words.prop_map(|(long, short, sender_pid)| BinderTransactionData {
        target: long[0],
        cookie: long[1],
        code: short[0],
        flags: short[1],
        sender_pid,
        sender_euid: short[2],
        data_size: long[2],
        offsets_size: long[3],
        buffer: long[4],
        offsets: long[5],
    })
}

fn node() -> impl Strategy<Value = BinderPtrCookie> {
    any::<(u64, u64)>().prop_map(|(ptr, cookie)| BinderPtrCookie { ptr, cookie })
}

fn notification() -> impl Strategy<Value = BinderHandleCookie> {
    any::<(u32, u64)>().prop_map(|(handle, cookie)| BinderHandleCookie { handle, cookie })
}

fn command() -> impl Strategy<Value = Command> {
    prop_oneof![
        (transaction_data(), any::<Option<u64>>())
            .prop_map(|(data, buffers_size)| Command::Transaction { data, buffers_size }),
        (transaction_data(), any::<Option<u64>>())
            .prop_map(|(data, buffers_size)| Command::Reply { data, buffers_size }),
        any::<i32>().prop_map(Command::AcquireResult),
        any::<u64>().prop_map(Command::FreeBuffer),
        any::<u32>().prop_map(Command::IncRefs),
        any::<u32>().prop_map(Command::Acquire),
        any::<u32>().prop_map(Command::Release),
        any::<u32>().prop_map(Command::DecRefs),
        node().prop_map(Command::IncRefsDone),
        node().prop_map(Command::AcquireDone),
        any::<(i32, u32)>()
            .prop_map(|(priority, desc)| Command::AttemptAcquire(BinderPriDesc { priority, desc })),
        Just(Command::RegisterLooper),
        Just(Command::EnterLooper),
        Just(Command::ExitLooper),
        notification().prop_map(Command::RequestDeathNotification),
        notification().prop_map(Command::ClearDeathNotification),
        any::<u64>().prop_map(Command::DeadBinderDone),
        notification().prop_map(Command::RequestFreezeNotification),
        notification().prop_map(Command::ClearFreezeNotification),
        any::<u64>().prop_map(Command::FreezeNotificationDone),
    ]
}

fn returned() -> impl Strategy<Value = Return> {
    prop_oneof![
        any::<i32>().prop_map(Return::Error),
        Just(Return::Ok),
        transaction_data().prop_map(Return::Transaction),
        (transaction_data(), any::<u64>()).prop_map(|(transaction_data, secctx)| {
            Return::TransactionSecCtx(BinderTransactionDataSecctx { transaction_data, secctx })
        }),
        transaction_data().prop_map(Return::Reply),
        Just(Return::DeadReply),
        Just(Return::TransactionComplete),
        node().prop_map(Return::IncRefs),
        node().prop_map(Return::Acquire),
        node().prop_map(Return::Release),
        node().prop_map(Return::DecRefs),
        Just(Return::Noop),
        Just(Return::SpawnLooper),
        any::<u64>().prop_map(Return::DeadBinder),
        any::<u64>().prop_map(Return::ClearDeathNotificationDone),
        Just(Return::FailedReply),
        Just(Return::FrozenReply),
        Just(Return::OnewaySpamSuspect),
        Just(Return::TransactionPendingFrozen),
        any::<(u64, u32)>().prop_map(|(cookie, is_frozen)| {
            Return::FrozenBinder(BinderFrozenStateInfo { cookie, is_frozen, reserved: 0 })
        }),
        any::<u64>().prop_map(Return::ClearFreezeNotificationDone),
    ]
}

fn written<T>(items: &[T], write: impl Fn(&T, &mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    for item in items {
        write(item, &mut bytes);
    }
    bytes
}

proptest! {
    // A failure prints its smallest input; no file is kept beside the sources.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn commands_survive_the_wire(commands in vec(command(), 0..20)) {
        let bytes = written(&commands, Command::write_to);
        let mut reader = CommandReader::new(&bytes);
        let read: Vec<Command> = reader.by_ref().collect::<Result<_, _>>().unwrap();
        prop_assert_eq!(read, commands);
        prop_assert_eq!(reader.consumed(), bytes.len());
    }

    #[test]
    fn returns_survive_the_wire_and_know_their_length(returns in vec(returned(), 0..20)) {
        let bytes = written(&returns, Return::write_to);
        let lengths: usize = returns.iter().map(Return::encoded_len).sum();
        prop_assert_eq!(lengths, bytes.len());
        let mut reader = ReturnReader::new(&bytes);
        let read: Vec<Return> = reader.by_ref().collect::<Result<_, _>>().unwrap();
        prop_assert_eq!(read, returns);
        prop_assert_eq!(reader.consumed(), bytes.len());
    }

    #[test]
    fn a_command_cut_at_any_byte_is_truncated_there(before in command(), cut in command()) {
        let mut bytes = Vec::new();
        before.write_to(&mut bytes);
        let start = bytes.len();
        cut.write_to(&mut bytes);
        for end in start + 1..bytes.len() {
            let mut reader = CommandReader::new(&bytes[..end]);
            prop_assert_eq!(reader.next(), Some(Ok(before)));
            match reader.next() {
                Some(Err(StreamError::Truncated { at, need, have, .. })) => {
                    prop_assert_eq!((at, have), (start, end - start));
                    prop_assert!(need > have && need <= bytes.len() - start);
                }
                other => prop_assert!(false, "cut to {end} bytes: {other:?}"),
            }
            prop_assert_eq!(reader.consumed(), start, "a half command must not count as taken");
            prop_assert_eq!(reader.next(), None, "nothing comes after an error");
        }
    }

    #[test]
    fn a_return_cut_at_any_byte_is_truncated_there(before in returned(), cut in returned()) {
        let mut bytes = Vec::new();
        before.write_to(&mut bytes);
        let start = bytes.len();
        cut.write_to(&mut bytes);
        for end in start + 1..bytes.len() {
            let mut reader = ReturnReader::new(&bytes[..end]);
            prop_assert_eq!(reader.next(), Some(Ok(before)));
            let cut_there = |next| matches!(next,
                Some(Err(StreamError::Truncated { at, .. })) if at == start);
            prop_assert!(cut_there(reader.next()), "cut to {} bytes", end);
            prop_assert_eq!(reader.consumed(), start);
            prop_assert_eq!(reader.next(), None);
        }
    }

    #[test]
    fn an_unknown_word_is_named_and_ends_the_stream(
        before in command(),
        word in any::<u32>().prop_filter("known", |word| !COMMANDS.contains(word)),
        after in vec(any::<u8>(), 0..100),
    ) {
        let mut bytes = Vec::new();
        before.write_to(&mut bytes);
        let start = bytes.len();
        bytes.extend(word.to_ne_bytes());
        bytes.extend(after);
        let mut reader = CommandReader::new(&bytes);
        prop_assert_eq!(reader.next(), Some(Ok(before)));
        let unknown = StreamError::Unknown { at: start, command: word };
        prop_assert_eq!(reader.next(), Some(Err(unknown)));
        prop_assert_eq!(reader.consumed(), start);
        prop_assert_eq!(reader.next(), None);
    }

    #[test]
    fn arbitrary_bytes_are_read_or_refused_and_never_panic(bytes in vec(any::<u8>(), 0..300)) {
        let mut reader = CommandReader::new(&bytes);
        while reader.next().is_some() {}
        prop_assert!(reader.consumed() <= bytes.len());
        let mut reader = ReturnReader::new(&bytes);
        while reader.next().is_some() {}
        prop_assert!(reader.consumed() <= bytes.len());
    }

    #[test]
    fn known_words_before_arbitrary_payloads_never_panic(
        words in vec((proptest::sample::select(COMMANDS.to_vec()), vec(any::<u8>(), 0..80)), 1..6),
    ) {
        let mut bytes = Vec::new();
        for (word, payload) in words {
            bytes.extend(word.to_ne_bytes());
            bytes.extend(payload);
        }
        let mut reader = CommandReader::new(&bytes);
        let first = reader.next().expect("there is at least a word");
        if let Ok(first) = first {
            let mut again = Vec::new();
            first.write_to(&mut again);
            prop_assert_eq!(&again[..], &bytes[..again.len()], "what is read is what was there");
        }
        while reader.next().is_some() {}
    }
}

const COMMANDS: [u32; 22] = [
    BC_TRANSACTION,
    BC_REPLY,
    BC_ACQUIRE_RESULT,
    BC_FREE_BUFFER,
    BC_INCREFS,
    BC_ACQUIRE,
    BC_RELEASE,
    BC_DECREFS,
    BC_INCREFS_DONE,
    BC_ACQUIRE_DONE,
    BC_ATTEMPT_ACQUIRE,
    BC_REGISTER_LOOPER,
    BC_ENTER_LOOPER,
    BC_EXIT_LOOPER,
    BC_REQUEST_DEATH_NOTIFICATION,
    BC_CLEAR_DEATH_NOTIFICATION,
    BC_DEAD_BINDER_DONE,
    BC_TRANSACTION_SG,
    BC_REPLY_SG,
    BC_REQUEST_FREEZE_NOTIFICATION,
    BC_CLEAR_FREEZE_NOTIFICATION,
    BC_FREEZE_NOTIFICATION_DONE,
];

/// Expected result of reading a stream: the ends of its whole commands, then the error if any.
fn expected(bytes: &[u8]) -> (Vec<usize>, Option<StreamError>) {
    let (mut ends, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let have = bytes.len() - at;
        let Some(word) = bytes[at..].first_chunk() else {
            return (ends, Some(StreamError::Truncated { at, command: 0, need: 4, have }));
        };
        let command = u32::from_ne_bytes(*word);
        if !COMMANDS.contains(&command) {
            return (ends, Some(StreamError::Unknown { at, command }));
        }
        let need = 4 + payload_len(command);
        if have < need {
            return (ends, Some(StreamError::Truncated { at, command, need, have }));
        }
        at += need;
        ends.push(at);
    }
    (ends, None)
}

/// Each sequence of up to three commands, known or not, cut at each byte of the last one.
#[test]
fn all_short_streams_are_read_up_to_the_first_error() {
    // Words that differ from a known one in its number, the size of its payload or its type.
    let unknown = [0, BC_ENTER_LOOPER + 0x40, BC_FREE_BUFFER + (4 << 16), BR_NOOP];
    let words = [&COMMANDS[..], &unknown].concat();
    let mut streams = vec![Vec::new()];
    for _ in 0..3 {
        let mut longer = Vec::new();
        for stream in &streams {
            for &word in &words {
                let mut bytes: Vec<u8> = [stream, &word.to_ne_bytes()[..]].concat();
                // No part of a payload is a known word.
                bytes.resize(bytes.len() + payload_len(word), 0xff);
                for end in stream.len() + 1..=bytes.len() {
                    let mut reader = CommandReader::new(&bytes[..end]);
                    let (ends, error) = expected(&bytes[..end]);
                    for end in &ends {
                        assert!(matches!(reader.next(), Some(Ok(_))), "{bytes:02x?}");
                        assert_eq!(reader.consumed(), *end);
                    }
                    assert_eq!(reader.next(), error.map(Err), "{:02x?}", &bytes[..end]);
                    assert_eq!(reader.next(), None);
                    assert_eq!(reader.consumed(), ends.last().copied().unwrap_or(0));
                }
                if !unknown.contains(&word) {
                    longer.push(bytes);
                }
            }
        }
        streams = longer;
    }
    assert_eq!(streams.len(), COMMANDS.len().pow(3));
}

#[test]
fn every_command_word_encodes_the_length_of_its_payload() {
    for word in COMMANDS {
        let mut bytes = word.to_ne_bytes().to_vec();
        bytes.resize(4 + payload_len(word), 0);
        let mut reader = CommandReader::new(&bytes);
        assert!(matches!(reader.next(), Some(Ok(_))), "{word:#010x}");
        assert_eq!(reader.consumed(), bytes.len(), "{word:#010x}");
        assert_eq!(reader.next(), None);
    }
}

#[test]
fn returns_that_no_driver_sends_are_unknown_to_the_reader() {
    for word in [BR_ACQUIRE_RESULT, BR_ATTEMPT_ACQUIRE, BR_FINISHED] {
        let mut bytes = word.to_ne_bytes().to_vec();
        bytes.resize(64, 0);
        let first = ReturnReader::new(&bytes).next();
        assert_eq!(first, Some(Err(StreamError::Unknown { at: 0, command: word })));
    }
}

#[test]
fn errors_name_the_place_and_the_sizes() {
    let mut bytes = Vec::new();
    Command::EnterLooper.write_to(&mut bytes);
    Command::FreeBuffer(7).write_to(&mut bytes);
    let error = CommandReader::new(&bytes[..10]).nth(1).unwrap().unwrap_err();
    assert_eq!(
        error.to_string(),
        "stream ends inside command 0x40086303 at byte 4: 12 bytes needed, 6 left"
    );
    let error = CommandReader::new(&[1, 2, 3, 4]).next().unwrap().unwrap_err();
    assert_eq!(error.to_string(), "unknown command 0x04030201 at byte 0");
}
