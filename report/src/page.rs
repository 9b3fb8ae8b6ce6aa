//! The page: one file without external resources.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::claims;
use crate::figures::Figures;
use crate::header::Header;
use crate::plot::{GRID, INK, PALETTE};
use crate::quotable;
use crate::scenario::RunSet;
use crate::sections;
use crate::subject::COLOURS;

const STYLE: &str = include_str!("style.css");

/// The palette on a dark background, in the order of [`PALETTE`].
const DARK: [&str; COLOURS] = [
    "#5fb0ff", "#a5d4ff", "#ff9159", "#ecc04a", "#e592c9", "#45cf9f", "#a3a8b2", "#d5d5dc",
    "#8fa5ff",
];

/// Renders the page.
pub fn render(header: &Header, figures: &Figures, sets: &[RunSet], raw: &str) -> String {
    let rendered = sections::render(figures, sets);
    let missing = sections::missing(figures);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "Headroom: measurements" }
                style { (PreEscaped(STYLE)) (PreEscaped(dark())) }
            }
            body {
                header {
                    h1 { "Headroom: measurements" }
                    (facts(header))
                }
                main {
                    (claims::render(figures))
                    nav {
                        a href="#short" { "Key figures" }
                        @for section in &rendered {
                            a href=(format!("#{}", section.anchor)) { (section.title) }
                        }
                    }
                    @if !missing.is_empty() {
                        p.muted { "Not in these results: " (missing.join(", ")) "." }
                    }
                    (quotable::render(figures))
                    @for section in &rendered { (section.markup) }
                }
                footer {
                    p {
                        a download="results.jsonl" href=(data_link(raw)) { "Raw results" }
                        ": " (figures.measured()) " figures were measured; "
                        "published ones are from other machines and named so."
                    }
                }
            }
        }
    };
    page.into_string()
}

fn facts(header: &Header) -> Markup {
    html! {
        dl.facts { @for (name, value) in &header.facts { div { dt { (name) } dd { (value) } } } }
        @if !header.versions.is_empty() {
            details {
                summary { "Versions" }
                div.scroll tabindex="0" { table.plain { tbody {
                    @for (name, value) in &header.versions {
                        tr { th scope="row" { (name) } td { (value) } }
                    }
                } } }
            }
        }
    }
}

/// CSS that replaces each colour of the drawings by its dark counterpart.
fn dark() -> String {
    let hex = |colour: plotters::style::RGBColor| {
        format!("#{:02X}{:02X}{:02X}", colour.0, colour.1, colour.2)
    };
    let pairs = PALETTE.into_iter().map(hex).zip(DARK.map(str::to_owned));
    let others = [(hex(INK), "#d6d6de".to_owned()), (hex(GRID), "#33343c".to_owned())];
    let mut rules = String::new();
    for (light, dark) in pairs.chain(others) {
        rules += &format!(
            "svg [stroke=\"{light}\"]{{stroke:{dark}}}svg [fill=\"{light}\"]{{fill:{dark}}}"
        );
    }
    format!("@media (prefers-color-scheme: dark){{{rules}}}")
}

/// A link that contains the raw results.
fn data_link(raw: &str) -> String {
    let mut link = "data:application/x-ndjson;charset=utf-8,".to_owned();
    for byte in raw.bytes() {
        match byte {
            b'a'..=b'z'
            | b'A'..=b'Z'
            | b'0'..=b'9'
            | b'-'
            | b'_'
            | b'.'
            | b'~'
            | b','
            | b':'
            | b'{'
            | b'}' => {
                link.push(char::from(byte));
            }
            other => link += &format!("%{other:02X}"),
        }
    }
    link
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_results_travel_in_the_link_and_cannot_leave_it() {
        let link = data_link("{\"a\":1}\n<b>&'/");
        assert_eq!(link, "data:application/x-ndjson;charset=utf-8,{%22a%22:1}%0A%3Cb%3E%26%27%2F");
    }

    #[test]
    fn every_colour_of_the_drawings_has_a_dark_counterpart() {
        let rules = dark();
        assert_eq!(rules.matches("svg [stroke=").count(), COLOURS + 2);
    }
}
