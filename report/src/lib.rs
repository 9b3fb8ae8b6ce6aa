//! Renders raw results as one static page, and the most important figures as a short text.
//!
//! Data flows one way: [`inputs`] reads lines, [`published`] figures of other publications,
//! [`scenario`] results of the lab; [`figures`] has all of that in one form. [`sections`] defines
//! what is shown of each benchmark, [`pivot`], [`plots`] and [`scenario_table`] render it.
//! [`claims`] compares the project's claims with their anchors, [`quotable`] selects key figures,
//! [`page`] assembles the page.
//!
//! Nothing is left out: benchmarks, metrics and subjects that are unknown to the report get tables
//! too.

pub mod axis;
pub mod claims;
pub mod figures;
pub mod header;
pub mod inputs;
pub mod interval_plot;
pub mod line_plot;
pub mod metric;
pub mod number;
pub mod page;
pub mod pivot;
pub mod plot;
pub mod plots;
pub mod published;
pub mod quotable;
pub mod scenario;
pub mod scenario_table;
pub mod sections;
pub mod subject;
