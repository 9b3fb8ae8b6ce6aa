//! Figures: measurements, our own and published ones, by benchmark and clock.

use bench::results::Measurement;

use crate::subject;

/// The clock by which a figure was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The real time of the machine that the report names.
    Wall,
    /// QEMU's instruction-count clock: virtual time.
    InstructionCount,
}

impl Clock {
    /// Short name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Wall => "Wall clock",
            Self::InstructionCount => "Instruction-count clock",
        }
    }

    /// Meaning of its figures.
    pub fn explanation(self) -> &'static str {
        match self {
            Self::Wall => "Real time on the machine named above.",
            Self::InstructionCount => {
                "Virtual time in an emulated machine with one CPU: QEMU counts one nanosecond an \
                 instruction. It compares code paths, and does not measure caches or cores; not \
                 comparable with the wall clock."
            }
        }
    }
}

/// One figure.
#[derive(Clone, Debug)]
pub struct Figure {
    /// Benchmark, subject, metric, value, unit, runs; its case without the clock's prefix.
    pub measurement: Measurement,
    /// The clock by which it was measured. A published figure has none, and is shown beside both.
    pub clock: Clock,
}

impl Figure {
    /// The prefix of the case names the clock.
    pub fn of(mut measurement: Measurement) -> Self {
        let mut clock = Clock::Wall;
        if let Some(rest) = measurement.case.strip_prefix("icount: ") {
            measurement.case = rest.to_owned();
            clock = Clock::InstructionCount;
        }
        Self { measurement, clock }
    }

    fn is_published(&self) -> bool {
        subject::is_published(&self.measurement.subject)
    }
}

/// All figures, in the order in which they were read.
#[derive(Clone, Debug, Default)]
pub struct Figures(Vec<Figure>);

impl Figures {
    /// Creates it from these figures.
    pub fn new(all: Vec<Figure>) -> Self {
        Self(all)
    }

    /// Our own figures.
    fn own(&self) -> impl Iterator<Item = &Figure> {
        self.0.iter().filter(|figure| !figure.is_published())
    }

    /// Number of our own figures.
    pub fn measured(&self) -> usize {
        self.own().count()
    }

    /// Our own benchmarks, in the order of their first figure.
    pub fn benches(&self) -> Vec<&str> {
        unique(self.own().map(|figure| figure.measurement.bench.as_str()))
    }

    /// The clocks by which a benchmark was measured.
    pub fn clocks(&self, bench: &str) -> Vec<Clock> {
        let used = |clock: &Clock| {
            self.own().any(|figure| figure.clock == *clock && figure.measurement.bench == bench)
        };
        [Clock::Wall, Clock::InstructionCount].into_iter().filter(used).collect()
    }

    /// A benchmark's figures by one clock, with the published ones.
    pub fn view(&self, bench: &str, clock: Clock) -> View {
        let wanted = |figure: &&Figure| {
            figure.measurement.bench == bench && (figure.is_published() || figure.clock == clock)
        };
        let figures = self.0.iter().filter(wanted).map(|figure| figure.measurement.clone());
        View { bench: bench.to_owned(), clock, kernel: None, figures: figures.collect() }
    }
}

/// The figures of one benchmark by one clock.
#[derive(Clone, Debug)]
pub struct View {
    /// Name of the benchmark.
    pub bench: String,
    /// The clock.
    pub clock: Clock,
    /// The kernel, if these figures are from one of several kernels.
    pub kernel: Option<String>,
    figures: Vec<Measurement>,
}

impl View {
    /// Iterates over all figures.
    pub fn iter(&self) -> impl Iterator<Item = &Measurement> {
        self.figures.iter()
    }

    /// Splits the view by kernel, if subjects name at least two: first the subjects that name none,
    /// if there are some, then those of each kernel, without its name. The published ones are in
    /// all parts.
    pub fn by_kernel(&self) -> Vec<Self> {
        let named = self.figures.iter().filter_map(|figure| subject::split(&figure.subject));
        let mut kernels = unique(named.map(|(_, kernel)| kernel));
        if kernels.len() < 2 {
            return vec![self.clone()];
        }
        kernels.sort_by_key(|kernel| subject::natural(kernel));
        let of = |kernel: Option<&str>| {
            let own = |figure: &Measurement| match subject::split(&figure.subject) {
                _ if subject::is_published(&figure.subject) => Some(figure.clone()),
                None => kernel.is_none().then(|| figure.clone()),
                Some((base, found)) => (Some(found) == kernel).then(|| {
                    let base = match base {
                        "kernel" => "kernel driver",
                        "kernel-rust" => "kernel driver, Rust",
                        other => other,
                    };
                    Measurement { subject: base.to_owned(), ..figure.clone() }
                }),
            };
            let figures = self.figures.iter().filter_map(own).collect();
            let (bench, kernel) = (self.bench.clone(), kernel.map(str::to_owned));
            Self { bench, clock: self.clock, kernel, figures }
        };
        let measured = |part: &Self| part.iter().any(|f| !subject::is_published(&f.subject));
        [None].into_iter().chain(kernels.into_iter().map(Some)).map(of).filter(measured).collect()
    }

    /// The figure of a case, subject and metric.
    pub fn find(&self, case: &str, subject: &str, metric: &str) -> Option<&Measurement> {
        let same = |f: &&Measurement| f.case == case && f.subject == subject && f.metric == metric;
        self.figures.iter().find(same)
    }

    /// The figure of the first of several metrics that exists.
    pub fn first(&self, case: &str, subject: &str, metrics: &[&str]) -> Option<&Measurement> {
        metrics.iter().find_map(|metric| self.find(case, subject, metric))
    }

    fn with(&self, metrics: &[&str]) -> impl Iterator<Item = &Measurement> {
        self.iter().filter(|figure| metrics.contains(&figure.metric.as_str()))
    }

    /// Cases that have one of these metrics: summaries and cases without a size in their original
    /// order, then the others by size or range.
    pub fn cases(&self, metrics: &[&str]) -> Vec<&str> {
        let mut cases = unique(self.with(metrics).map(|figure| figure.case.as_str()));
        cases
            .sort_by_key(|case| magnitude(case).map_or(0, |magnitude| magnitude.saturating_add(1)));
        cases
    }

    /// Subjects that have one of these metrics, our own first.
    pub fn subjects(&self, metrics: &[&str]) -> Vec<&str> {
        let mut subjects = unique(self.with(metrics).map(|figure| figure.subject.as_str()));
        subjects.sort_by_key(|name| subject::rank(name));
        subjects
    }

    /// All metrics, in the order of their first figure.
    pub fn metrics(&self) -> Vec<&str> {
        unique(self.iter().map(|figure| figure.metric.as_str()))
    }
}

/// Each of these once, in the order in which they appear.
pub fn unique<'f>(all: impl Iterator<Item = &'f str>) -> Vec<&'f str> {
    let mut found = Vec::new();
    for one in all {
        if !found.contains(&one) {
            found.push(one);
        }
    }
    found
}

/// Sort key of a case: the bytes of `16 KiB idle`, the start of `10000-20000`.
pub fn magnitude(case: &str) -> Option<u64> {
    range(case).map(|(first, _)| first).or_else(|| size(case).map(|(bytes, _)| bytes))
}

/// The bytes of a case such as `16 KiB idle` or `4 B, any core`, and the text that follows them.
pub fn size(case: &str) -> Option<(u64, &str)> {
    let (count, rest) = case.split_once(' ')?;
    let (unit, after) = rest.split_once(' ').unwrap_or((rest, ""));
    let scale = match unit.trim_end_matches(',') {
        "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    let bytes = count.parse::<f64>().ok()? * f64::from(scale);
    (bytes.is_finite() && bytes >= 0.0).then_some((bytes as u64, after))
}

/// The ends of a case such as `10000-20000`.
pub fn range(case: &str) -> Option<(u64, u64)> {
    let (first, last) = case.split_once('-')?;
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    (first < last).then_some((first, last))
}

#[cfg(test)]
mod tests {
    use bench::results::Key;

    use super::*;

    fn figure(case: &str, subject: &str) -> Figure {
        Figure::of(Measurement::new(Key { bench: "b", case, subject, metric: "m" }, 1.0, "us", 1))
    }

    #[test]
    fn the_prefix_of_a_case_selects_its_clock() {
        let all = ["icount: 4 B", "4 B"].map(|case| figure(case, "pipe"));
        let clocks = [Clock::InstructionCount, Clock::Wall];
        assert_eq!(all.clone().map(|figure| figure.clock), clocks);
        assert!(all.iter().all(|figure| figure.measurement.case == "4 B"));
        let figures = Figures::new(all.to_vec());
        assert_eq!(figures.clocks("b"), [Clock::Wall, Clock::InstructionCount]);
        assert_eq!(figures.view("b", Clock::Wall).iter().count(), 1);
    }

    #[test]
    fn published_figures_stand_beside_those_of_every_clock_but_are_no_benchmark_alone() {
        let published = Measurement::new(
            Key { bench: "b", case: "4 B", subject: "published", metric: "m" },
            1.0,
            "us",
            1,
        );
        let alone = Figures::new(vec![Figure::of(published.clone())]);
        assert!(alone.benches().is_empty() && alone.clocks("b").is_empty());
        let both = Figures::new(vec![figure("icount: 4 B", "pipe"), Figure::of(published)]);
        assert_eq!(both.clocks("b"), [Clock::InstructionCount]);
        assert_eq!(both.view("b", Clock::InstructionCount).subjects(&["m"]), ["pipe", "published"]);
    }

    #[test]
    fn cases_are_sorted_by_what_they_measure() {
        let figures = ["1 KiB", "all", "64 KiB idle", "4 B"].map(|case| figure(case, "pipe"));
        let figures = Figures::new(figures.to_vec());
        let view = figures.view("b", Clock::Wall);
        assert_eq!(view.cases(&["m"]), ["all", "4 B", "1 KiB", "64 KiB idle"]);
    }

    #[test]
    fn several_kernels_are_looked_at_one_by_one_each_beside_the_published() {
        let names =
            ["kernel-6.12", "headroom 6.12", "kernel-rust-6.1", "published", "pipe 6.1", "futex"];
        let figures = Figures::new(names.map(|name| figure("4 B", name)).to_vec());
        let parts = figures.view("b", Clock::Wall).by_kernel();
        let kernels: Vec<_> = parts.iter().map(|part| part.kernel.as_deref()).collect();
        assert_eq!(kernels, [None, Some("6.1"), Some("6.12")]);
        assert_eq!(parts[0].subjects(&["m"]), ["futex", "published"]);
        assert_eq!(parts[1].subjects(&["m"]), ["kernel driver, Rust", "pipe", "published"]);
        assert_eq!(parts[2].subjects(&["m"]), ["headroom", "kernel driver", "published"]);
        let alone = Figures::new(vec![figure("4 B", "kernel-6.12"), figure("4 B", "pipe")]);
        let parts = alone.view("b", Clock::Wall).by_kernel();
        assert_eq!((parts.len(), &parts[0].kernel), (1, &None));
        assert_eq!(parts[0].subjects(&["m"]), ["kernel-6.12", "pipe"]);
    }

    #[test]
    fn sizes_and_ranges_are_read() {
        assert_eq!(size("16 KiB idle"), Some((16_384, "idle")));
        assert_eq!(size("4 B"), Some((4, "")));
        assert_eq!(size("1 KiB, any core"), Some((1024, "any core")));
        assert_eq!(range("10000-20000"), Some((10_000, 20_000)));
        for case in ["all", "fifo-99", "nice -20", "-4 B", "nan B", "", "B", "1 -"] {
            assert_eq!(magnitude(case), None, "{case}");
        }
    }
}
