//! The `[machine]` section of the configuration: thresholds of system memory pressure.
//!
//! ```toml
//! [machine]
//! enabled = true
//! soft = "10%"          # available memory at which a process gets SIGTERM
//! hard = "5%"           # ... and SIGKILL
//! swap-soft = "10%"     # the soft level applies only if free swap is below this
//! swap-hard = "5%"      # the hard level applies only if free swap is below this
//! forecast-ms = 100     # kill if memory is forecast to run out within this time; 0: never
//! stall-percent = 50    # kill if all tasks stalled for this share ...
//! stall-ms = 5000       # ... of this time (PSI full); 0: never
//! max-kills = 30        # after this number of kills only "hard" and the forecast kill; logged
//! max-kills-window-ms = 60000 # ... within this time; 0: no maximum
//! ```
//! Percentages are of the memory that processes use or can allocate (`MemAvailable` + `AnonPages` +
//! `Shmem` + `PageTables` + `Unevictable` - `Mlocked`), or of total swap.

use std::collections::BTreeMap;
use std::ops::Range;

use headroom_linux::machine_memory::size;
use memory_ledger::{Level, Thresholds};
use toml::Spanned;
use toml::de::DeValue;

use super::values::{ConfigDiagnostic, number, only_keys, truth};

pub(crate) const KEYS: &[&str] = &[
    "enabled",
    "soft",
    "hard",
    "swap-soft",
    "swap-hard",
    "forecast-ms",
    "stall-percent",
    "stall-ms",
    "max-kills",
    "max-kills-window-ms",
];

/// Accumulates the `[machine]` sections in the order in which the files are read.
pub(crate) struct MachineMerge {
    enabled: bool,
    thresholds: Thresholds,
    /// For each key, the last file that sets it and the place in it.
    set_at: BTreeMap<String, (usize, Range<usize>)>,
}

impl Default for MachineMerge {
    fn default() -> Self {
        Self { enabled: true, thresholds: Thresholds::default(), set_at: BTreeMap::new() }
    }
}

impl MachineMerge {
    /// Merges the section of file number `file`: its keys replace those of earlier files.
    pub(crate) fn add(
        &mut self,
        file: usize,
        section: &Spanned<DeValue>,
    ) -> Result<(), ConfigDiagnostic> {
        let table = section.get_ref().as_table().ok_or_else(|| {
            ConfigDiagnostic::new(
                section.span(),
                "the machine is described in one [machine] section",
            )
        })?;
        only_keys(table, KEYS, "a [machine] section")?;
        let thresholds = &mut self.thresholds;
        for (key, value) in table {
            let key = key.get_ref().as_ref();
            match key {
                "enabled" => self.enabled = truth(value)?,
                "soft" => thresholds.soft = level(value)?,
                "hard" => thresholds.hard = level(value)?,
                "swap-soft" => thresholds.swap_soft = level(value)?,
                "swap-hard" => thresholds.swap_hard = level(value)?,
                "forecast-ms" => thresholds.forecast_ms = number(value, 10_000)?,
                "stall-percent" => thresholds.stall_percent = number(value, 100)? as u32,
                "stall-ms" => thresholds.stall_ms = number(value, 600_000)?,
                "max-kills" => thresholds.kills.most = number(value, 100_000)? as u32,
                _ => thresholds.kills.within_ms = number(value, 86_400_000)?,
            }
            self.set_at.insert(key.to_owned(), (file, value.span()));
        }
        Ok(())
    }

    /// The merged thresholds; `None` if `enabled = false`. An error carries the number of the file
    /// that it refers to.
    pub(crate) fn finish(self) -> Result<Option<Thresholds>, (usize, ConfigDiagnostic)> {
        let Self { enabled, thresholds, set_at } = self;
        let pairs = [
            ("hard", thresholds.hard, "soft", thresholds.soft),
            ("swap-hard", thresholds.swap_hard, "swap-soft", thresholds.swap_soft),
        ];
        for (low, low_level, high, high_level) in pairs {
            let above = match (low_level, high_level) {
                (Level::Share(low), Level::Share(high)) => low > high,
                (Level::Bytes(low), Level::Bytes(high)) => low > high,
                _ => false,
            };
            if above {
                // Reports the key set by the later file; if one file sets both, the lower
                // threshold.
                let last = [set_at.get(low), set_at.get(high)];
                let last = last.into_iter().flatten().rev().max_by_key(|(file, _)| *file);
                let (file, at) = last.cloned().unwrap_or_default();
                let message = format!("\"{low}\" ({low_level}) is above \"{high}\" ({high_level})");
                return Err((file, ConfigDiagnostic { at, message }));
            }
        }
        Ok(enabled.then_some(thresholds))
    }
}

/// A threshold: an amount of memory or a percentage.
fn level(value: &Spanned<DeValue>) -> Result<Level, ConfigDiagnostic> {
    /// 100 %, in units of 0.01 %.
    const WHOLE: u64 = 10_000;
    let error = |message: String| ConfigDiagnostic::new(value.span(), message);
    match value.get_ref() {
        DeValue::String(text) if text.trim_end().ends_with('%') => size::parse(text, Some(WHOLE))
            .map(|hundredths| Level::Share(hundredths as u32))
            .map_err(|e| error(e.to_string())),
        DeValue::String(text) => {
            size::parse(text, None).map(Level::Bytes).map_err(|e| error(e.to_string()))
        }
        DeValue::Integer(_) => number(value, u64::MAX >> 1).map(Level::Bytes),
        other => Err(error(format!(
            "a level is a string like \"10%\" or \"512M\", or a number of bytes, not a {}",
            other.type_str()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use memory_ledger::RateLimit;
    use toml::de::DeTable;

    use super::*;

    fn parsed(text: &str) -> Result<Option<Thresholds>, String> {
        let document = DeTable::parse(text).unwrap();
        let mut merge = MachineMerge::default();
        let section = document.get_ref().get("machine").unwrap();
        merge.add(0, section).map_err(|diagnostic| diagnostic.message)?;
        merge.finish().map_err(|(_, diagnostic)| diagnostic.message)
    }

    #[test]
    fn missing_settings_have_their_defaults() {
        assert_eq!(parsed("[machine]"), Ok(Some(Thresholds::default())));
        assert_eq!(parsed("[machine]\nenabled = false"), Ok(None));
        let text = "[machine]\nsoft = \"12.5%\"\nhard = \"64M\"\nforecast-ms = 0\nstall-ms = 7000\n\
                    max-kills = 5\nmax-kills-window-ms = 10_000";
        let expected = Thresholds {
            soft: Level::Share(1250),
            hard: Level::Bytes(64 << 20),
            forecast_ms: 0,
            stall_ms: 7000,
            kills: RateLimit { most: 5, within_ms: 10_000 },
            ..Thresholds::default()
        };
        assert_eq!(parsed(text), Ok(Some(expected)));
    }

    #[test]
    fn every_mistake_is_named() {
        for (text, part) in [
            ("machine = 1", "one [machine] section"),
            ("[machine]\nsfot = \"1%\"", "did you mean \"soft\"?"),
            ("[machine]\nsoft = \"101%\"", "more than 100%"),
            ("[machine]\nsoft = true", "not a boolean"),
            ("[machine]\nsoft = \"1%\"\nhard = \"2%\"", "\"hard\" (2%) is above \"soft\" (1%)"),
            ("[machine]\nswap-hard = \"20%\"", "\"swap-hard\" (20%) is above \"swap-soft\" (10%)"),
            ("[machine]\nstall-percent = 101", "from 0 to 100"),
            ("[machine]\nstall-ms = -1", "whole number"),
            ("[machine]\nmax-kills = \"many\"", "whole number"),
            ("[machine]\nenabled = \"yes\"", "true or false"),
        ] {
            let message = parsed(text).expect_err(text);
            assert!(message.contains(part), "{text}: {message}");
        }
    }
}
