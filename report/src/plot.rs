//! Common parts of all plots: the canvas, colours, the frame around an SVG, and the legend.
//!
//! A plot is drawn in the colours of the light theme; `style.css` maps each of them to its dark
//! counterpart. The legend is HTML outside the drawing, so that it cannot cover a line.

use maud::{Markup, PreEscaped, html};
use plotters::prelude::*;

use crate::subject::{COLOURS, Look, look};

/// Width of a drawing, in units of the drawing.
pub const WIDTH: u32 = 600;
/// Height of a line plot.
pub const HEIGHT: u32 = 360;
/// Font size.
pub const TEXT: u32 = 15;

/// The colours of subjects on a light background, distinguishable with most forms of colour
/// blindness.
pub const PALETTE: [RGBColor; COLOURS] = [
    RGBColor(0x00, 0x5F, 0xB8),
    RGBColor(0x3F, 0x9F, 0xE6),
    RGBColor(0xC4, 0x4E, 0x01),
    RGBColor(0xB8, 0x86, 0x02),
    RGBColor(0xA8, 0x45, 0x8A),
    RGBColor(0x06, 0x80, 0x60),
    RGBColor(0x75, 0x7B, 0x85),
    RGBColor(0x42, 0x42, 0x4A),
    RGBColor(0x1B, 0x2F, 0x7A),
];
/// Colour of text and axes.
pub const INK: RGBColor = RGBColor(0x33, 0x33, 0x3A);
/// Colour of the grid.
pub const GRID: RGBColor = RGBColor(0xE2, 0xE2, 0xE6);

/// The colour of a subject.
pub fn colour(look: Look) -> RGBColor {
    PALETTE[look.colour % COLOURS]
}

/// The line width of a subject.
pub fn stroke(look: Look) -> u32 {
    if look.ours { 3 } else { 2 }
}

/// A drawing with its title and legend.
pub struct Plot {
    /// The title.
    pub title: String,
    /// Names of the subjects, in the order of the legend.
    pub subjects: Vec<String>,
    /// The drawing, as SVG.
    pub svg: String,
}

impl Plot {
    /// Renders the plot as a figure of the page.
    pub fn render(&self) -> Markup {
        html! {
            figure.plot {
                figcaption { (self.title) }
                (PreEscaped(framed(&self.svg, &self.title)))
                ul.legend {
                    @for name in &self.subjects {
                        li.ours[look(name).ours] { (key(look(name))) (name) }
                    }
                }
            }
        }
    }
}

/// The drawing without its size, which the page determines, and with a name for screen readers.
fn framed(svg: &str, title: &str) -> String {
    let inside = svg.split_once("<svg").and_then(|(_, rest)| rest.split_once('>'));
    let inside = inside.map_or(svg, |(_, inside)| inside);
    let view = format!("0 0 {WIDTH} {}", height(svg));
    let head = html! { svg viewBox=(view) role="img" aria-label=(title) {} };
    let head = head.into_string();
    format!("{}{inside}", head.trim_end_matches("</svg>"))
}

fn height(svg: &str) -> &str {
    let after = svg.split_once("height=\"").map_or("", |(_, rest)| rest);
    after.split_once('"').map_or("360", |(height, _)| height)
}

/// The sample line in the legend.
fn key(look: Look) -> Markup {
    let dash = look.published.then_some("5 4");
    let RGBColor(red, green, blue) = colour(look);
    let colour = format!("#{red:02X}{green:02X}{blue:02X}");
    html! {
        svg.key viewBox="0 0 30 12" width="30" height="12" aria-hidden="true" {
            line x1="1" y1="6" x2="29" y2="6" stroke=(colour) stroke-width=(stroke(look))
                stroke-dasharray=[dash] {}
            @if !look.published { circle cx="15" cy="6" r=(radius(look)) fill=(colour) {} }
        }
    }
}

/// The radius of a subject's points.
pub fn radius(look: Look) -> u32 {
    if look.ours { 4 } else { 3 }
}
