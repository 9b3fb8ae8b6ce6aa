//! `ITasks`, served asynchronously: by `tasks_service`, and by tests for callbacks.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use rsbinder::cancel::CancellationSignal;
use rsbinder::fmq::{MQDescriptor, MessageQueue, SynchronizedReadWrite};
use rsbinder::stream::{Sink, StreamEndpoint};
use rsbinder::{
    BinderResult, Interface, ParcelFileDescriptor, SIBinder, Status, StatusCode, Strong, Tokio,
    TokioRuntime, get_calling_pid,
};
use tokio::runtime::Handle;

use crate::headroom::suite::{
    INamed::BnNamed, INamed::INamed, INamed::INamedAsyncService, IOneWay::IOneWay, ITasks::BnTasks,
    ITasks::ITasks, ITasks::ITasksAsyncService, Packet::Content::Content, Packet::Packet,
    Pair::Pair, Point::Point, Tree::Tree, Value::Value,
};

/// An object with a name.
pub struct Named(pub String);

impl Interface for Named {}

#[async_trait]
impl INamedAsyncService for Named {
    async fn name(&self) -> BinderResult<String> {
        tokio::task::yield_now().await;
        Ok(self.0.clone())
    }
}

/// Must be called on a runtime of several threads.
pub fn named(name: &str) -> Strong<dyn INamed> {
    BnNamed::new_async_binder(Named(name.to_owned()), TokioRuntime(Handle::current()))
}

/// Echoes all values, and implements the methods that take time.
#[derive(Default)]
pub struct Tasks {
    operation: Mutex<Option<CancellationSignal>>,
}

/// Must be called on a runtime of several threads.
pub fn tasks() -> Strong<dyn ITasks> {
    BnTasks::new_async_binder(Tasks::default(), TokioRuntime(Handle::current()))
}

impl Interface for Tasks {}

fn refused(error: std::io::Error) -> Status {
    Status::new_service_specific_error(error.raw_os_error().unwrap_or(-1), Some(error.to_string()))
}

fn copies(files: &[ParcelFileDescriptor]) -> BinderResult<Vec<ParcelFileDescriptor>> {
    files.iter().map(|file| Ok(file.try_clone()?)).collect()
}

fn pipe_with(content: &str) -> BinderResult<ParcelFileDescriptor> {
    let (read, mut write) = std::io::pipe().map_err(refused)?;
    write.write_all(content.as_bytes()).map_err(refused)?;
    Ok(ParcelFileDescriptor::new(OwnedFd::from(read)))
}

#[async_trait]
impl ITasksAsyncService for Tasks {
    async fn echo(&self, text: &str) -> BinderResult<String> {
        Ok(text.to_owned())
    }

    async fn sum(&self, numbers: &[i32]) -> BinderResult<i32> {
        Ok(numbers.iter().sum())
    }

    async fn reverse(&self, points: &[Point]) -> BinderResult<Vec<Point>> {
        Ok(points.iter().rev().cloned().collect())
    }

    async fn echoValue(&self, value: &Value) -> BinderResult<Value> {
        Ok(value.clone())
    }

    async fn echoPacket(&self, packet: &Packet) -> BinderResult<Packet> {
        Ok(Packet {
            fixed: packet.fixed,
            matrix: packet.matrix,
            labels: packet.labels.clone(),
            defaults: packet.defaults.clone(),
            stamp: crate::stamp(packet.stamp.kind, packet.stamp.time),
            content: match &packet.content {
                Content::Bytes(bytes) => Content::Bytes(bytes.clone()),
                Content::Stamp(stamp) => Content::Stamp(crate::stamp(stamp.kind, stamp.time)),
                Content::Object(object) => Content::Object(object.clone()),
            },
            pair: packet.pair.clone(),
            file: packet.file.as_ref().map(ParcelFileDescriptor::try_clone).transpose()?,
            files: copies(&packet.files)?,
            named: packet.named.clone(),
            crowd: packet.crowd.clone(),
            objects: packet.objects.clone(),
            text: packet.text.clone(),
            kinds: packet.kinds.clone(),
        })
    }

    async fn echoTree(&self, tree: &Tree) -> BinderResult<Tree> {
        Ok(tree.clone())
    }

    async fn swap(&self, pair: &Pair<i32, String>) -> BinderResult<Pair<i32, String>> {
        Ok(Pair { left: pair.right, right: pair.left, ..Pair::default() })
    }

    async fn transpose(&self, matrix: &[[i32; 3]; 2]) -> BinderResult<[[i32; 3]; 2]> {
        let mut numbers = (0..3).flat_map(|column| [matrix[0][column], matrix[1][column]]);
        Ok([(); 2].map(|()| [(); 3].map(|()| numbers.next().unwrap_or(0))))
    }

    async fn fill(&self, four: &mut [i32; 4], words: &mut Vec<String>) -> BinderResult<()> {
        *four = [1, 2, 3, 4];
        words.push("filled".to_owned());
        Ok(())
    }

    async fn named(&self, name: &str) -> BinderResult<Strong<dyn INamed>> {
        Ok(named(name))
    }

    async fn relay(&self, next: &Strong<dyn ITasks>, times: i32) -> BinderResult<i32> {
        if times == 0 {
            return Ok(0);
        }
        let next = next.clone().into_async::<Tokio>();
        Ok(next.relay(&tasks(), times - 1).await? + 1)
    }

    async fn report(&self, to: &Strong<dyn IOneWay>, count: i32) -> BinderResult<()> {
        let to = to.clone().into_async::<Tokio>();
        for number in 0..count {
            to.put(number).await?;
        }
        Ok(())
    }

    async fn slowly(&self, text: &str, milliseconds: i32) -> BinderResult<String> {
        tokio::time::sleep(Duration::from_millis(milliseconds as u64)).await;
        Ok(text.to_owned())
    }

    async fn fail(&self, code: i32) -> BinderResult<()> {
        Err(Status::new_service_specific_error(code, Some("as requested".into())))
    }

    async fn pipeWith(&self, content: &str) -> BinderResult<ParcelFileDescriptor> {
        pipe_with(content)
    }

    async fn pipesWith(&self, contents: &[String]) -> BinderResult<Vec<ParcelFileDescriptor>> {
        contents.iter().map(|content| pipe_with(content)).collect()
    }

    async fn writeTo(&self, file: &ParcelFileDescriptor, content: &[u8]) -> BinderResult<()> {
        let mut file = File::from(OwnedFd::from(file.try_clone()?));
        file.write_all(content).map_err(refused)
    }

    async fn count(&self, endpoint: &StreamEndpoint<i32>, to: i32) -> BinderResult<()> {
        let mut sink = Sink::open(endpoint)?;
        std::thread::spawn(move || {
            if (0..to).all(|number| sink.send(&number).is_ok()) {
                let _ = sink.end();
            }
        });
        Ok(())
    }

    async fn queueWith(
        &self,
        content: &[u8],
    ) -> BinderResult<MQDescriptor<i8, SynchronizedReadWrite>> {
        let broken = |_| StatusCode::BadValue;
        let mut queue = MessageQueue::<u8>::create(4096, true).map_err(broken)?;
        if !queue.write(content).map_err(broken)? {
            return Err(StatusCode::BadValue.into());
        }
        Ok(queue.descriptor().map_err(broken)?.try_into()?)
    }

    async fn start(&self) -> BinderResult<SIBinder> {
        let signal = CancellationSignal::new();
        let transport = signal.create_transport().as_binder();
        *self.operation.lock().unwrap() = Some(signal);
        Ok(transport)
    }

    async fn canceled(&self) -> BinderResult<bool> {
        Ok(self.operation.lock().unwrap().as_ref().is_some_and(CancellationSignal::is_canceled))
    }

    async fn callerPid(&self) -> BinderResult<i32> {
        Ok(get_calling_pid())
    }

    async fn die(&self) -> BinderResult<()> {
        std::process::exit(0);
    }
}
