//! The margin measured by `headroom oom margin --save`, from which unset soft limits are derived.
//!
//! ```toml
//! allocation-bytes-per-s = 9800000000
//! reclaim-bytes-per-s = 11000000000
//! reaction-us = 900
//! ```

use std::path::Path;

use memory_ledger::Margin;
use toml::de::DeTable;

use super::diagnostic::only_keys;
use super::read_trusted_if_there;

const KEYS: [&str; 3] = ["allocation-bytes-per-s", "reclaim-bytes-per-s", "reaction-us"];
/// Upper bound of each value (bytes per second, microseconds). No machine exceeds it, so a larger
/// value is an error.
const MOST: u64 = 1 << 50;

/// Reads the file, if only root and the daemon's own user can change it. `Ok(None)`: the file does
/// not exist, so no margin was measured. The error contains the path and the fallback that applies.
pub fn load(path: &Path) -> Result<Option<Margin>, String> {
    let complain =
        |message: String| format!("{}: {message}; soft limits are 90 % unless set", path.display());
    let text = read_trusted_if_there(path).map_err(|error| complain(error.to_string()))?;
    text.map(|text| parse(&text).map_err(complain)).transpose()
}

fn parse(text: &str) -> Result<Margin, String> {
    let document = DeTable::parse(text).map_err(|e| e.message().replace('\n', "; "))?;
    let table = document.get_ref();
    only_keys(table, &KEYS, "the measured margin").map_err(|diagnostic| diagnostic.message)?;
    let number = |key: &str| {
        let value = table.get(key).ok_or_else(|| format!("\"{key}\" is missing"))?;
        let number = value.get_ref().as_integer().and_then(as_u64);
        number
            .filter(|number| (1..=MOST).contains(number))
            .ok_or_else(|| format!("\"{key}\" is no whole number from 1 to {MOST}"))
    };
    let [allocation, reclaim, reaction] = KEYS.map(number);
    Ok(Margin {
        allocation_bytes_per_s: allocation?,
        reclaim_bytes_per_s: reclaim?,
        reaction_ns: reaction?.saturating_mul(1000),
    })
}

fn as_u64(number: &toml::de::DeInteger) -> Option<u64> {
    u64::from_str_radix(number.as_str(), number.radix()).ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const GOOD: &str =
        "# measured\nallocation-bytes-per-s = 10\nreclaim-bytes-per-s = 20\nreaction-us = 3\n";

    #[test]
    fn a_measured_margin_is_read() {
        let margin =
            Margin { allocation_bytes_per_s: 10, reclaim_bytes_per_s: 20, reaction_ns: 3000 };
        assert_eq!(parse(GOOD), Ok(margin));
        assert_eq!(load(Path::new("/nonexistent/margin.toml")), Ok(None));
    }

    #[test]
    fn a_file_that_other_users_can_change_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("margin.toml");
        std::fs::write(&path, GOOD).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).unwrap();
        let message = load(&path).expect_err("anybody can write it");
        assert!(message.contains("mode 0666") && message.ends_with("unless set"), "{message}");
    }

    #[test]
    fn an_invalid_file_is_named_with_the_consequence() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("margin.toml");
        for (text, part) in [
            ("reaction-us = 3", "\"allocation-bytes-per-s\" is missing"),
            (&*GOOD.replace("20", "0"), "\"reclaim-bytes-per-s\" is no whole number"),
            (&*GOOD.replace("20", "-1"), "no whole number"),
            (&*GOOD.replace("= 3", "= 3.5"), "no whole number"),
            (&*GOOD.replace("reaction-us", "reaction-ms"), "did you mean \"reaction-us\"?"),
            ("nonsense", ""),
        ] {
            std::fs::write(&path, text).unwrap();
            let message = load(&path).expect_err(text);
            assert!(message.contains(part), "{text}: {message}");
            assert!(message.starts_with(&path.display().to_string()), "{message}");
            assert!(message.ends_with("soft limits are 90 % unless set"), "{message}");
        }
    }
}
