//! Renders raw results as one static page, and the claims as a short text.
//!
//! Data flows one way: [`inputs`] reads lines of results, our own and those of other publications,
//! and the lab's [`scenario`]s; [`figures`] has all of that in one form. [`tables`] has what is
//! said of claims, benchmarks and metrics; [`sections`] shows each benchmark, by [`pivot`] and
//! [`plots`]. [`claims`] compares the project's claims with their anchors, [`page`] assembles the
//! page.
//!
//! Nothing is left out: benchmarks, metrics and subjects that are unknown to the report get tables
//! too.

pub mod claims;
pub mod figures;
pub mod header;
pub mod inputs;
pub mod metric;
pub mod number;
pub mod page;
pub mod pivot;
pub mod plot;
pub mod plots;
pub mod scenario;
pub mod sections;
pub mod subject;
pub mod tables;
