//! `tasks_service NAME`: serves `ITasks` from a Tokio runtime, until a client stops it.

use rsbinder::Uri;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1).ok_or("tasks_service NAME")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let tasks = runtime.block_on(async { suite::tasks::tasks() });
    rsbinder::serve(Uri::kernel())?.add(&name, tasks)?.run()?;
    Ok(())
}
