//! `hello_client [NAME]`: calls all methods of the service, prints a line for each, and stops the
//! service. Exit code 0 only if all of them succeeded.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use hello::headroom::hello::IHello::IHello;
use hello::headroom::hello::IHelloListener::{BnHelloListener, IHelloListener};
use rsbinder::{
    BinderResult, DeathRecipient, ExceptionCode, Interface, ProcessState, Strong, WIBinder, hub,
};

/// Limit for any wait.
const PATIENCE: Duration = Duration::from_secs(20);

type Outcome<T = String> = Result<T, Box<dyn std::error::Error>>;

struct Listener(Sender<i32>);

impl Interface for Listener {}

impl IHelloListener for Listener {
    fn answer(&self, question: i32) -> BinderResult<i32> {
        Ok(question * 2)
    }

    fn received(&self, number: i32) -> BinderResult<()> {
        let _ = self.0.send(number);
        Ok(())
    }
}

struct Obituary(Sender<()>);

impl DeathRecipient for Obituary {
    fn binder_died(&self, _who: &WIBinder) {
        let _ = self.0.send(());
    }
}

struct Client {
    service: Strong<dyn IHello>,
    listener: Strong<dyn IHelloListener>,
    received: Receiver<i32>,
}

fn check(condition: bool, message: impl FnOnce() -> String) -> Outcome<()> {
    if condition { Ok(()) } else { Err(message().into()) }
}

impl Client {
    fn connect(name: &str) -> Outcome<Self> {
        let service = hub::wait_for_interface::<dyn IHello>(name)?;
        let (sender, received) = channel();
        Ok(Self { service, listener: BnHelloListener::new_binder(Listener(sender)), received })
    }

    fn echo(&self) -> Outcome {
        let reply = self.service.echo("hello")?;
        check(reply == "hello", || format!("the echo was '{reply}'"))?;
        Ok(format!("echo: '{reply}'"))
    }

    fn exception(&self) -> Outcome {
        let error = self.service.echo("").err().ok_or("the empty echo was accepted")?;
        check(error.exception_code() == ExceptionCode::IllegalArgument, || format!("{error:?}"))?;
        Ok(format!("exception: {error}"))
    }

    fn sizes(&self) -> Outcome {
        let mut largest = 0;
        for exponent in 0..=18 {
            let data: Vec<u8> = (0..(1usize << exponent)).map(|i| (i % 251) as u8).collect();
            let reply = self.service.repeat(&data, 2)?;
            check(reply == data.repeat(2), || format!("{} bytes came back wrong", data.len()))?;
            largest = reply.len();
        }
        Ok(format!("sizes: 1 byte to {largest} bytes, each came back intact"))
    }

    fn nested(&self) -> Outcome {
        let answer = self.service.query(&self.listener, 21)?;
        check(answer == 42, || format!("the nested call answered {answer}"))?;
        Ok(format!("nested call: {answer}"))
    }

    fn one_way(&self) -> Outcome {
        const NUMBERS: i32 = 500;
        self.service.subscribe(&self.listener)?;
        // At most as many as fit into the one-way half of a receive buffer.
        for batch in 0..NUMBERS / 50 {
            for number in batch * 50..(batch + 1) * 50 {
                self.service.notify(number)?;
            }
            for number in batch * 50..(batch + 1) * 50 {
                let received = self.received.recv_timeout(PATIENCE)?;
                check(received == number, || format!("received {received} in place of {number}"))?;
            }
        }
        Ok(format!("one-way calls: {NUMBERS} there and back, in order"))
    }

    fn speed(&self) -> Outcome {
        const CALLS: u32 = 1000;
        let start = Instant::now();
        for _ in 0..CALLS {
            self.service.echo("x")?;
        }
        Ok(format!("speed: {CALLS} calls, {:.0?} each", start.elapsed() / CALLS))
    }

    fn threads(&self) -> Outcome {
        const THREADS: usize = 8;
        const CALLS: usize = 100;
        std::thread::scope(|scope| {
            let call = |thread: usize| {
                let service = &self.service;
                move || -> Result<(), String> {
                    for i in 0..CALLS {
                        let text = format!("{thread}/{i}");
                        let reply = service.echo(&text).map_err(|e| e.to_string())?;
                        if reply != text {
                            return Err(format!("thread {thread} got the reply '{reply}'"));
                        }
                    }
                    Ok(())
                }
            };
            let all: Vec<_> = (0..THREADS).map(|thread| scope.spawn(call(thread))).collect();
            all.into_iter().try_for_each(|one| one.join().expect("a calling thread panicked"))
        })?;
        Ok(format!("threads: {THREADS} at a time, {CALLS} calls each, every reply its own"))
    }

    fn death(&self) -> Outcome {
        let (sender, died) = channel();
        let obituary = Arc::new(Obituary(sender));
        self.service.as_binder().link_to_death_arc(&obituary)?;
        self.service.die()?;
        died.recv_timeout(PATIENCE).map_err(|_| "no notification of the death of the service")?;
        check(self.service.echo("still there?").is_err(), || "a dead service answered".into())?;
        Ok("death: told of it, and calls fail".into())
    }
}

fn main() -> Outcome<()> {
    let name = std::env::args().nth(1).unwrap_or_else(|| hello::SERVICE.to_owned());
    ProcessState::init_default()?;
    ProcessState::start_thread_pool();
    let client = Client::connect(&name)?;
    let steps: [fn(&Client) -> Outcome; 8] = [
        Client::echo,
        Client::exception,
        Client::sizes,
        Client::nested,
        Client::one_way,
        Client::threads,
        Client::speed,
        Client::death,
    ];
    for step in steps {
        println!("{}", step(&client)?);
    }
    Ok(())
}
