//! The page: one file without external resources.

use maud::{DOCTYPE, PreEscaped, html};

use crate::claims;
use crate::figures::Figures;
use crate::sections;

const STYLE: &str = include_str!("style.css");

/// Renders the page; `facts` are names and values of the environment.
pub fn render(facts: &[(String, String)], figures: &Figures) -> String {
    let rendered = sections::render(figures);
    let missing = sections::missing(figures);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "Headroom: measurements" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { "Headroom: measurements" }
                details {
                    summary { "Environment" }
                    dl.facts {
                        @for (name, value) in facts { div { dt { (name) } dd { (value) } } }
                    }
                }
                main {
                    (claims::render(figures))
                    nav { @for section in &rendered {
                        a href=(format!("#{}", section.anchor)) { (section.title) }
                    } }
                    @if !missing.is_empty() {
                        p.muted { "Not in these results: " (missing.join(", ")) "." }
                    }
                    @for section in &rendered { (section.markup) }
                }
                footer { p {
                    (figures.measured()) " figures were measured, all of them in "
                    code { "results.jsonl" } " beside this page; published ones are from other \
                    machines and named so."
                } }
            }
        }
    };
    page.into_string()
}
