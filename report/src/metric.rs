//! Known metrics: their meaning, and which direction is better.

use crate::tables::TABLES;

/// A metric's label; its key if it is unknown.
pub fn label(key: &str) -> &str {
    TABLES.metrics.labels.get(key).map_or(key, String::as_str)
}

/// Which direction of a metric is better, if one is.
pub fn better(key: &str) -> &'static str {
    let metrics = &TABLES.metrics;
    let among = |keys: &[String]| keys.iter().any(|known| known == key);
    if !metrics.labels.contains_key(key) || among(&metrics.neither) {
        ""
    } else if among(&metrics.higher) {
        " · higher is better"
    } else if among(&metrics.one) {
        " · nearer to 1 is better"
    } else {
        " · lower is better"
    }
}

/// The metric, and its replacements for subjects without it.
pub fn with_replacements(key: &str) -> Vec<&str> {
    let found = TABLES.metrics.replacements.get(key).into_iter().flatten();
    std::iter::once(key).chain(found.map(String::as_str)).collect()
}

/// Whether the metric replaces one of these.
pub fn is_replacement(key: &str, all: &[&str]) -> bool {
    all.iter().any(|metric| *metric != key && with_replacements(metric).contains(&key))
}

/// Human-readable form of a unit.
pub fn unit(unit: &str) -> &str {
    match unit {
        "us" => "µs",
        "mb_per_s" => "MB/s",
        "ratio" => "×",
        other => other,
    }
}

/// The metric of which this one is an end of the interval: `x` for `x_low`, if `x` exists.
pub fn interval_of<'k>(key: &'k str, all: &[&str]) -> Option<&'k str> {
    let ends = ["_low", "_high", "_min", "_max"];
    let base = ends.iter().find_map(|end| key.strip_suffix(end))?;
    all.contains(&base).then_some(base)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_metric_is_called_by_its_key() {
        assert_eq!(label("rtt_us_p50"), "Round trip, median");
        assert_eq!((label("wombats"), better("wombats")), ("wombats", ""));
    }

    #[test]
    fn ends_of_intervals_belong_to_their_metric() {
        let all = ["mb_per_s", "mb_per_s_min", "max_us", "stall_ms_max"];
        assert_eq!(interval_of("mb_per_s_min", &all), Some("mb_per_s"));
        assert_eq!(interval_of("stall_ms_max", &all), None);
        assert_eq!(interval_of("mb_per_s", &all), None);
    }
}
