//! A plot of lines: one per subject.

use plotters::prelude::*;
use plotters::series::DashedLineSeries;

use crate::axis::Axis;
use crate::plot::{GRID, HEIGHT, INK, Plot, TEXT, WIDTH, colour, radius, stroke};
use crate::subject::{self, look};

/// The points of one subject, from left to right.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Name of the subject.
    pub subject: String,
    /// Coordinates of the points.
    pub points: Vec<(f64, f64)>,
}

/// Draws lines between two axes. `None` if there is no line.
pub fn draw(title: &str, x: Axis, y: Axis, lines: &[Line]) -> Option<Plot> {
    let mut lines: Vec<&Line> = lines.iter().filter(|line| !line.points.is_empty()).collect();
    lines.sort_by_key(|line| subject::rank(&line.subject));
    let subjects = lines.iter().map(|line| line.subject.clone()).collect::<Vec<_>>();
    if subjects.is_empty() {
        return None;
    }
    let mut svg = String::new();
    // Drawing into a string does not fail.
    canvas(&mut svg, x, y, &lines).ok()?;
    Some(Plot { title: title.to_owned(), subjects, svg })
}

type Fault<'s> = DrawingAreaErrorKind<<SVGBackend<'s> as DrawingBackend>::ErrorType>;

fn canvas<'s>(svg: &'s mut String, x: Axis, y: Axis, lines: &[&Line]) -> Result<(), Fault<'s>> {
    let area = SVGBackend::with_string(svg, (WIDTH, HEIGHT)).into_drawing_area();
    let (x_label, y_label) = (x.label.clone(), y.label.clone());
    let (x_ticks, y_ticks) = (x.ticks().count(), y.ticks().count());
    let mut chart = ChartBuilder::on(&area)
        .margin(8)
        .margin_right(18)
        .x_label_area_size(48)
        .y_label_area_size(64)
        .build_cartesian_2d(x, y)?;
    let text = ("sans-serif", TEXT).into_font().color(&INK);
    chart
        .configure_mesh()
        .x_labels(x_ticks)
        .y_labels(y_ticks)
        .x_desc(x_label)
        .y_desc(y_label)
        .axis_style(INK)
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .label_style(text.clone())
        .axis_desc_style(text)
        .draw()?;
    // Our own last, so that they are drawn on top.
    for line in lines.iter().rev() {
        let look = look(&line.subject);
        let style = colour(look).stroke_width(stroke(look));
        let points = line.points.iter().copied();
        if look.published {
            chart.draw_series(DashedLineSeries::new(points, 6, 4, style))?;
            continue;
        }
        chart.draw_series(LineSeries::new(points.clone(), style))?;
        let dot = |point| Circle::new(point, radius(look), colour(look).filled());
        chart.draw_series(points.map(dot))?;
    }
    drop(chart);
    area.present()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_drawn_and_a_hostile_name_is_no_element() {
        let lines = [
            Line { subject: "<script>x</script>".into(), points: vec![(4.0, 1.0), (64.0, 2.0)] },
            Line { subject: "headroom".into(), points: vec![(4.0, 2.0)] },
        ];
        let x = Axis::sizes("<b>bytes", [4.0, 64.0].into_iter());
        let y = Axis::logarithmic("µs", [1.0, 2.0].into_iter());
        let plot = draw("<i>title", x, y, &lines).expect("a plot");
        assert_eq!(plot.subjects, ["headroom", "<script>x</script>"]);
        let html = plot.render().into_string();
        assert!(html.contains("<polyline") && html.contains("16 B"), "{html}");
        for hostile in ["<script", "<b>", "<i>"] {
            assert!(!html.contains(hostile), "{hostile} in {html}");
        }
    }

    #[test]
    fn no_lines_make_no_plot() {
        let axis = || Axis::linear("", std::iter::empty());
        assert!(draw("", axis(), axis(), &[]).is_none());
    }
}
