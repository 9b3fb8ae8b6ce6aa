//! A plot of intervals: minimum, maximum and a point between for each category and subject.

use plotters::prelude::*;

use crate::axis::Axis;
use crate::plot::{GRID, INK, Plot, TEXT, WIDTH, colour, radius, stroke};
use crate::subject::{self, look};

/// One interval.
#[derive(Clone, Debug, PartialEq)]
pub struct Interval {
    /// Category: the row of the interval.
    pub category: String,
    /// Subject of the interval.
    pub subject: String,
    /// Lower end.
    pub low: f64,
    /// Value of the point.
    pub middle: f64,
    /// Upper end.
    pub high: f64,
}

/// Height of an interval, in units of the drawing.
const ROW: u32 = 16;
/// Height of axis and margins.
const REST: u32 = 70;
/// Approximate width of a letter.
const LETTER: f64 = 7.8;

/// Draws intervals, one band per category, on a logarithmic axis. `None` if there is no interval.
pub fn draw(
    title: &str,
    x_label: &str,
    categories: &[&str],
    intervals: &[Interval],
) -> Option<Plot> {
    let mut subjects: Vec<String> = Vec::new();
    for interval in intervals {
        if !subjects.contains(&interval.subject) {
            subjects.push(interval.subject.clone());
        }
    }
    subjects.sort_by_key(|name| subject::rank(name));
    // Bands only for categories with intervals: a published category need not be one of ours.
    let there = |name: &&&str| intervals.iter().any(|interval| interval.category == **name);
    let categories: Vec<String> =
        categories.iter().filter(there).map(|&name| name.to_owned()).collect();
    if categories.is_empty() {
        return None;
    }
    let mut svg = String::new();
    // Drawing into a string does not fail.
    canvas(&mut svg, x_label, &categories, intervals).ok()?;
    Some(Plot { title: title.to_owned(), subjects, svg })
}

type Fault<'s> = DrawingAreaErrorKind<<SVGBackend<'s> as DrawingBackend>::ErrorType>;

fn canvas<'s>(
    svg: &'s mut String,
    x_label: &str,
    categories: &[String],
    intervals: &[Interval],
) -> Result<(), Fault<'s>> {
    let of = |category: &String| {
        let mut found: Vec<&Interval> =
            intervals.iter().filter(|interval| interval.category == *category).collect();
        found.sort_by_key(|interval| subject::rank(&interval.subject));
        found
    };
    let most = categories.iter().map(|category| of(category).len()).max().unwrap_or(1) as u32;
    let height = categories.len() as u32 * (most + 1) * ROW + REST;
    let area = SVGBackend::with_string(svg, (WIDTH, height)).into_drawing_area();
    let x = intervals.iter().flat_map(|interval| [interval.low, interval.high]);
    let (x, y) = (Axis::logarithmic(x_label, x), Axis::categories(categories));
    let longest = categories.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let label = (longest as f64 * LETTER + 16.0).clamp(60.0, 260.0) as u32;
    let (ends, ticks) = ((x.low(), x.high()), x.ticks().count());
    let mut chart = ChartBuilder::on(&area)
        .margin(8)
        .margin_right(18)
        .x_label_area_size(48)
        .y_label_area_size(label)
        .build_cartesian_2d(x, y)?;
    let text = ("sans-serif", TEXT).into_font().color(&INK);
    chart
        .configure_mesh()
        .disable_y_mesh()
        .x_labels(ticks)
        .y_labels(categories.len())
        .x_desc(x_label)
        .axis_style(INK)
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .label_style(text.clone())
        .axis_desc_style(text)
        .draw()?;
    for (at, category) in categories.iter().enumerate() {
        let top = (categories.len() - at) as f64;
        let border = vec![(ends.0, top), (ends.1, top)];
        chart.draw_series([PathElement::new(border, GRID)])?;
        for (row, interval) in of(category).into_iter().enumerate() {
            let y = top - f64::from(row as u32 + 1) / f64::from(most + 1);
            let look = look(&interval.subject);
            let style = colour(look).stroke_width(stroke(look));
            let (low, high) = ((interval.low, y), (interval.high, y));
            if look.published {
                chart.draw_series(DashedLineSeries::new([low, high], 6, 4, style))?;
            } else {
                chart.draw_series([PathElement::new(vec![low, high], style)])?;
            }
            let middle = Circle::new((interval.middle, y), radius(look), colour(look).filled());
            chart.draw_series([middle])?;
        }
    }
    drop(chart);
    area.present()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(category: &str, subject: &str) -> Interval {
        let [category, subject] = [category, subject].map(str::to_owned);
        Interval { category, subject, low: 1.0, middle: 2.0, high: 300.0 }
    }

    #[test]
    fn only_categories_with_an_interval_get_a_band_and_names_are_escaped() {
        let all = [interval("nice <b>19", "headroom"), interval("fifo-1", "published mutex")];
        let plot = draw("t", "µs", &["fifo-1", "nice <b>19", "empty"], &all).expect("a plot");
        assert_eq!(plot.subjects, ["headroom", "published mutex"]);
        assert!(plot.svg.contains("fifo-1") && !plot.svg.contains("empty"));
        assert!(!plot.svg.contains("<b>"), "{}", plot.svg);
        assert!(draw("t", "µs", &["empty"], &all).is_none());
    }
}
