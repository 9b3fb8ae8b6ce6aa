//! `headroom binder reclaim`: reclaims the memory of idle buffers.

use control::binderd::{Reply, Request};

use crate::arguments::Globals;
use crate::helpers::client::{BUFFER_PAGE, call_binderd, unexpected};
use crate::helpers::output;
use crate::helpers::size::Size;

/// Runs `headroom binder reclaim`.
pub fn reclaim(globals: &Globals, size: Option<Size>) -> anyhow::Result<()> {
    let most = size.map_or(u64::MAX, |size| size.0.div_ceil(BUFFER_PAGE));
    let mut sum = Reclaimed::default();
    while sum.pages < most {
        match call_binderd(&globals.binderd_socket, &Request::Reclaim { pages: most - sum.pages })?
        {
            Reply::Reclaimed { pages, idle_pages } => {
                sum = Reclaimed { pages: sum.pages + pages, idle_pages };
                if pages == 0 || idle_pages == 0 {
                    break;
                }
            }
            reply => return Err(unexpected(&reply)),
        }
    }
    output::print_as(globals.format(), &sum, || {
        let (back, left) = (Size(sum.pages * BUFFER_PAGE), Size(sum.idle_pages * BUFFER_PAGE));
        format!("{back} back, {left} of idle buffers left\n")
    })
}

/// Result of the request.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
struct Reclaimed {
    pages: u64,
    idle_pages: u64,
}
