//! Drawings as SVG: lines of subjects between two axes, and intervals by category.
//!
//! `style.css` has the colours for light and dark backgrounds. The legend is HTML outside the
//! drawing, so that it cannot cover a line.

use maud::{Markup, html};

use crate::number;
use crate::subject;

const WIDTH: f64 = 600.0;
const HEIGHT: f64 = 360.0;
/// Space for the ticks' labels on the left of a line plot.
const LEFT: f64 = 64.0;
const RIGHT: f64 = 18.0;
const TOP: f64 = 8.0;
/// Space for ticks and label below.
const BOTTOM: f64 = 48.0;
/// Height of an interval.
const ROW: f64 = 16.0;
/// Approximate width of a letter.
const LETTER: f64 = 7.8;
/// Number of colours in `style.css`.
const COLOURS: usize = 9;

/// Distribution of values on an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// From zero.
    Linear,
    /// Logarithmic, with ticks at round values.
    Logarithmic,
    /// Logarithmic, with ticks at powers of four bytes.
    Sizes,
}

/// An axis that contains certain values.
struct Axis<'a> {
    label: &'a str,
    low: f64,
    high: f64,
    scale: Scale,
    ticks: Vec<(f64, String)>,
}

impl<'a> Axis<'a> {
    /// Values at or below zero have no place on a logarithmic axis.
    fn new(scale: Scale, label: &'a str, values: impl Iterator<Item = f64>) -> Self {
        let usable = |value: &f64| value.is_finite() && (scale == Scale::Linear || *value > 0.0);
        let values: Vec<f64> = values.filter(usable).collect();
        let low = values.iter().copied().reduce(f64::min).unwrap_or(0.1);
        let high = values.iter().copied().reduce(f64::max).unwrap_or(10.0);
        if scale == Scale::Linear {
            let (low, high) = (low.min(0.0), if high > 0.0 { high * 1.04 } else { 1.0 });
            let step = step((high - low) / 6.0);
            let numbers = (low / step).ceil() as i64..=(high / step).floor() as i64;
            let ticks = numbers.map(|at| at as f64 * step).map(|at| (at, number::short(at)));
            return Self { label, low, high, scale, ticks: ticks.collect() };
        }
        // Margins at both ends, and at least a factor of two in total.
        let margin = 1.08f64.max((2.0 * low / high).sqrt());
        let (low, high) = (low / margin, high * margin);
        let ticks = match scale {
            Scale::Sizes => {
                let powers = (0..20).map(|power| 4u64.pow(power));
                let inside = powers.filter(|size| (low..=high).contains(&(*size as f64)));
                let name = |size: u64| bench::report::bytes(size as usize).replace("iB", "");
                inside.map(|size| (size as f64, name(size))).collect()
            }
            _ => round_values(low, high).into_iter().map(|at| (at, number::short(at))).collect(),
        };
        Self { label, low, high, scale, ticks }
    }

    /// Position of a value: 0 at the lower end, 1 at the upper end.
    fn share(&self, value: f64) -> f64 {
        if self.scale == Scale::Linear {
            return (value - self.low) / (self.high - self.low);
        }
        (value.clamp(self.low, self.high) / self.low).ln() / (self.high / self.low).ln()
    }
}

/// The smallest of 1, 2 or 5 times a power of ten that is at least this.
fn step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    let steps = [1.0, 2.0, 5.0].map(|factor| factor * power);
    steps.into_iter().find(|step| *step >= least * (1.0 - 1e-9)).unwrap_or(10.0 * power)
}

/// Round values within the range, as dense as readable: at most nine.
fn round_values(low: f64, high: f64) -> Vec<f64> {
    let decades = low.log10().floor() as i32..=high.log10().ceil() as i32;
    let dense: [&[f64]; 4] = [
        &[1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0],
        &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0],
        &[1.0, 2.0, 5.0],
        &[1.0],
    ];
    let mut found = Vec::new();
    for factors in dense {
        let decade = |power: i32| factors.iter().map(move |factor| factor * 10f64.powi(power));
        found = decades.clone().flat_map(decade).filter(|v| (low..=high).contains(v)).collect();
        if found.len() <= 9 {
            break;
        }
    }
    found
}

/// The points of one subject, from left to right.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Name of the subject.
    pub subject: String,
    /// Coordinates of the points.
    pub points: Vec<(f64, f64)>,
}

/// Draws lines between two axes. `None` if there is no line, or only published ones.
pub fn lines(title: &str, x: (Scale, &str), y: (Scale, &str), lines: &[Line]) -> Option<Markup> {
    let mut lines: Vec<&Line> = lines.iter().filter(|line| !line.points.is_empty()).collect();
    lines.sort_by_key(|line| subject::rank(&line.subject));
    let subjects: Vec<&str> = lines.iter().map(|line| line.subject.as_str()).collect();
    let points = || lines.iter().flat_map(|line| &line.points);
    let x = Axis::new(x.0, x.1, points().map(|(x, _)| *x));
    let y = Axis::new(y.0, y.1, points().map(|(_, y)| *y));
    let (bottom, width) = (HEIGHT - BOTTOM, WIDTH - LEFT - RIGHT);
    let place = |(at, value): &(f64, f64)| {
        (LEFT + x.share(*at) * width, bottom - y.share(*value) * (bottom - TOP))
    };
    let drawing = html! {
        @for (value, name) in &y.ticks {
            @let (left, height) = place(&(x.low, *value));
            line.grid x1=(left) x2=(WIDTH - RIGHT) y1=(height) y2=(height) {}
            text x=(left - 6.0) y=(height + 4.0) text-anchor="end" { (name) }
        }
        (horizontal(&x, LEFT, HEIGHT))
        text transform=(format!("translate(14 {}) rotate(-90)", bottom / 2.0))
            text-anchor="middle" { (y.label) }
        // Our own last, so that they are drawn on top.
        @for (at, line) in lines.iter().enumerate().rev() {
            @let points: Vec<(f64, f64)> = line.points.iter().map(place).collect();
            polyline class=(classes(at, &line.subject)) points=(coordinates(&points)) {}
            @for (x, y) in points {
                circle class=(classes(at, &line.subject)) cx=(x) cy=(y) r="3" {}
            }
        }
    };
    figure(title, &subjects, HEIGHT, &drawing)
}

fn coordinates(points: &[(f64, f64)]) -> String {
    points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect::<Vec<_>>().join(" ")
}

/// Grid, ticks and label of the horizontal axis, at the bottom of a drawing of this height.
fn horizontal(x: &Axis, left: f64, height: f64) -> Markup {
    let bottom = height - BOTTOM;
    html! {
        @for (value, name) in &x.ticks {
            @let at = left + x.share(*value) * (WIDTH - left - RIGHT);
            line.grid x1=(at) x2=(at) y1=(TOP) y2=(bottom) {}
            text x=(at) y=(bottom + 17.0) text-anchor="middle" { (name) }
        }
        text x=((left + WIDTH) / 2.0) y=(height - 8.0) text-anchor="middle" { (x.label) }
    }
}

/// One interval of a subject.
#[derive(Clone, Debug, PartialEq)]
pub struct Interval {
    /// Category: the band of the interval.
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

/// Draws intervals, one band per category, on a logarithmic axis. `None` without an interval of our
/// own.
pub fn intervals(title: &str, label: &str, intervals: &[Interval]) -> Option<Markup> {
    let mut sorted: Vec<&Interval> = intervals.iter().collect();
    sorted.sort_by_key(|interval| subject::rank(&interval.subject));
    let mut subjects: Vec<&str> = sorted.iter().map(|one| one.subject.as_str()).collect();
    subjects.dedup();
    let mut categories: Vec<&str> = intervals.iter().map(|one| one.category.as_str()).collect();
    categories.dedup();
    let longest = categories.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let left = (longest as f64 * LETTER + 16.0).clamp(60.0, 260.0);
    let x = Axis::new(Scale::Logarithmic, label, sorted.iter().flat_map(|i| [i.low, i.high]));
    let place = |value| left + x.share(value) * (WIDTH - left - RIGHT);
    let mut y = TOP;
    let mut bands = Vec::new();
    for category in categories {
        let own = sorted.iter().filter(|interval| interval.category == category);
        let rows: Vec<(&Interval, f64)> =
            own.enumerate().map(|(row, one)| (*one, y + ROW * (row as f64 + 1.0))).collect();
        let height = ROW * (rows.len() as f64 + 1.0);
        bands.push((category, y, y + height / 2.0, rows));
        y += height;
    }
    let drawing = html! {
        (horizontal(&x, left, y + BOTTOM))
        @for (category, top, middle, rows) in bands {
            line.grid x1="0" x2=(WIDTH - RIGHT) y1=(top) y2=(top) {}
            text x=(left - 6.0) y=(middle + 4.0) text-anchor="end" { (category) }
            @for (one, y) in rows {
                @let at = subjects.iter().position(|name| *name == one.subject).unwrap_or(0);
                line class=(classes(at, &one.subject)) x1=(place(one.low)) x2=(place(one.high))
                    y1=(y) y2=(y) {}
                circle class=(classes(at, &one.subject)) cx=(place(one.middle)) cy=(y) r="4" {}
            }
        }
    };
    figure(title, &subjects, y + BOTTOM, &drawing)
}

/// Classes of what a subject has in a drawing: its colour, and how it is drawn.
fn classes(at: usize, name: &str) -> String {
    format!("s{} {}", at % COLOURS, subject::class(name)).trim_end().to_owned()
}

fn figure(title: &str, subjects: &[&str], height: f64, drawing: &Markup) -> Option<Markup> {
    subjects.iter().any(|name| !subject::is_published(name)).then(|| {
        html! {
            figure.plot {
                figcaption { (title) }
                svg viewBox=(format!("0 0 {WIDTH} {height}")) role="img" aria-label=(title) {
                    (drawing)
                }
                ul.legend { @for (at, name) in subjects.iter().enumerate() {
                    li.ours[subject::is_ours(name)] {
                        svg.key viewBox="0 0 30 12" aria-hidden="true" {
                            line class=(classes(at, name)) x1="1" x2="29" y1="6" y2="6" {}
                        }
                        (name)
                    }
                } }
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(scale: Scale, values: &[f64]) -> Axis<'static> {
        Axis::new(scale, "", values.iter().copied())
    }

    fn labels(axis: &Axis) -> String {
        axis.ticks.iter().map(|(_, name)| name.as_str()).collect::<Vec<_>>().join("|")
    }

    #[test]
    fn ticks_are_round_and_few_whatever_the_range() {
        use Scale::{Linear, Logarithmic, Sizes};
        assert_eq!(labels(&axis(Logarithmic, &[1.0, 100.0])), "1|2|5|10|20|50|100");
        assert_eq!(labels(&axis(Logarithmic, &[9.0, 11.0])), "8|9|10|12|14");
        assert_eq!(labels(&axis(Linear, &[100_000.0])), "0|20 k|40 k|60 k|80 k|100 k");
        let sizes = "4 B|16 B|64 B|256 B|1 K|4 K|16 K|64 K";
        assert_eq!(labels(&axis(Sizes, &[4.0, 65_536.0])), sizes);
        for values in [[1e-6, 1e9], [0.5, 0.5], [3.0, 3.1], [1.0, 1e4]] {
            let axis = axis(Logarithmic, &values);
            assert!((2..=16).contains(&axis.ticks.len()), "{values:?}: {}", labels(&axis));
        }
    }

    #[test]
    fn no_values_or_wild_ones_still_make_an_axis() {
        for values in [&[][..], &[0.0], &[f64::NAN, f64::INFINITY], &[-1.0]] {
            for scale in [Scale::Linear, Scale::Logarithmic] {
                let axis = axis(scale, values);
                assert!(axis.low < axis.high, "{values:?}");
                assert!((0.0..=1.0).contains(&axis.share(axis.high)));
            }
        }
    }

    #[test]
    fn values_are_placed_by_their_logarithm() {
        let axis = axis(Scale::Logarithmic, &[1.0, 100.0]);
        assert!((axis.share(10.0) - 0.5).abs() < 1e-9);
        assert_eq!(axis.share(0.0), 0.0);
    }

    #[test]
    fn lines_are_drawn_and_a_hostile_name_is_no_element() {
        let all = [
            Line { subject: "<script>x</script>".into(), points: vec![(4.0, 1.0), (64.0, 2.0)] },
            Line { subject: "headroom".into(), points: vec![(4.0, 2.0)] },
        ];
        let axes = ((Scale::Sizes, "<b>bytes"), (Scale::Logarithmic, "µs"));
        let html = lines("<i>title", axes.0, axes.1, &all).expect("a plot").into_string();
        assert!(html.contains("<polyline") && html.contains("16 B"), "{html}");
        for hostile in ["<script", "<b>", "<i>"] {
            assert!(!html.contains(hostile), "{hostile} in {html}");
        }
        assert!(lines("", axes.0, axes.1, &[]).is_none());
    }

    #[test]
    fn intervals_have_a_band_each_and_names_are_escaped() {
        let interval = |category: &str, subject: &str| {
            let [category, subject] = [category, subject].map(str::to_owned);
            Interval { category, subject, low: 1.0, middle: 2.0, high: 300.0 }
        };
        let all = [interval("nice <b>19", "headroom"), interval("fifo-1", "published mutex")];
        let html = intervals("t", "µs", &all).expect("a plot").into_string();
        assert!(html.contains("fifo-1") && !html.contains("<b>"), "{html}");
        assert!(intervals("t", "µs", &all[1..]).is_none(), "only published");
    }
}
