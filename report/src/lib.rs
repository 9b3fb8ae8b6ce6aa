//! Turns raw results into one static page, and the figures worth quoting into a short text.
//!
//! Data flows one way: [`inputs`] reads lines, [`published`] what others measured, [`scenario`]
//! what happened in the lab; [`figures`] is all of that in one shape. [`sections`] says what is
//! shown of each benchmark, [`pivot`], [`plots`] and [`scenario_table`] show it, [`page`] puts it
//! together and [`quotable`] picks the few figures for a terminal.
//!
//! Nothing is left out: a benchmark, metric or subject that nobody told the report about has its
//! table too.

pub mod axis;
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
