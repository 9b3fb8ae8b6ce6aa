//! Subjects: their order and their colours, the same everywhere.

/// Number of colours; `style.css` has as many.
pub const COLOURS: usize = 9;

/// A subject's look in plots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Index of the colour, below [`COLOURS`].
    pub colour: usize,
    /// Our own: thick line.
    pub ours: bool,
    /// Published by others: dashed line.
    pub published: bool,
}

/// Whether the subject is one of our own.
pub fn is_ours(name: &str) -> bool {
    name.starts_with("headroom") || name == "tmalloc"
}

/// Whether the subject was published by others.
pub fn is_published(name: &str) -> bool {
    name.starts_with("published")
}

/// Sort key of subjects: our own, the kernel's own, baselines, peers, published ones.
pub fn rank(name: &str) -> (usize, String) {
    const KNOWN: [&str; 12] = [
        "headroom",
        "kernel",
        "seqpacket",
        "pipe",
        "futex",
        "naive",
        "none",
        "earlyoom",
        "nohang",
        "systemd-oomd",
        "",
        "published",
    ];
    const UNKNOWN: usize = 10;
    let known = KNOWN.iter().position(|known| !known.is_empty() && name.starts_with(known));
    (known.unwrap_or(UNKNOWN), natural(name))
}

/// A subject without the kernel at the end of its name, and the kernel: `headroom` and `6.12` for
/// `headroom-6.12` or `headroom 6.12`.
pub fn split(name: &str) -> Option<(&str, &str)> {
    let at = name.rfind([' ', '-'])?;
    let (base, kernel) = (&name[..at], &name[at + 1..]);
    let (major, minor) = kernel.split_once('.')?;
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (number(major) && (number(minor) || minor == "x") && !base.is_empty()).then_some((base, kernel))
}

/// Sort key for which 6.12 comes after 6.1, and passthrough, our better mapping, before
/// notify-store.
pub fn natural(name: &str) -> String {
    if name.contains("notify") {
        return format!("~{name}");
    }
    let mut key = String::new();
    let mut digits = String::new();
    for letter in name.chars().chain(['\0']) {
        if letter.is_ascii_digit() {
            digits.push(letter);
            continue;
        }
        if !digits.is_empty() {
            key += &format!("{digits:0>8}");
            digits.clear();
        }
        key.push(letter);
    }
    key
}

/// A subject's look. Colours are shared only by subjects that never occur in the same plot, or of
/// which one is dashed.
pub fn look(name: &str) -> Look {
    let (ours, published) = (is_ours(name), is_published(name));
    let has = |part: &str| name.contains(part);
    let colour = if ours && has("6.12") {
        0
    } else if ours && has("6.1") {
        8
    } else if ours && (has("7.") || has("notify")) {
        1
    } else if ours {
        0
    } else if has("naive") {
        7
    } else if has("kernel-6.12") || has("C driver") || has("earlyoom") {
        3
    } else if has("kernel-6") || has("walk") || has("mutex") || has("nohang") {
        2
    } else if has("kernel") || has("bitmap") || has("spinlock") || has("oomd") {
        4
    } else if has("seqpacket") || has("expedited") {
        5
    } else if has("pipe") || has("none") {
        6
    } else if has("futex") || has("second series") {
        7
    } else if published {
        2
    } else {
        // Unknown to the report: an arbitrary colour, always the same.
        name.bytes().fold(0usize, |sum, byte| sum * 31 % 1009 + usize::from(byte)) % 6 + 2
    };
    Look { colour, ours, published }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ours_come_first_and_the_published_last() {
        let mut names = [
            "published bitmap",
            "stranger",
            "pipe",
            "kernel-6.12",
            "kernel-7.x",
            "kernel-6.1",
            "headroom notify-store",
            "headroom passthrough",
            "seqpacket",
            "futex",
        ];
        names.sort_by_key(|name| rank(name));
        assert_eq!(
            names,
            [
                "headroom passthrough",
                "headroom notify-store",
                "kernel-6.1",
                "kernel-6.12",
                "kernel-7.x",
                "seqpacket",
                "pipe",
                "futex",
                "stranger",
                "published bitmap",
            ]
        );
    }

    #[test]
    fn kernels_are_taken_off_names() {
        assert_eq!(split("headroom passthrough 6.12"), Some(("headroom passthrough", "6.12")));
        assert_eq!(split("kernel-7.x"), Some(("kernel", "7.x")));
        for name in [
            "naive-walk",
            "published bitmap",
            "-6.12",
            "",
            "a 6.",
            "a .1",
            "6.12",
            "binder /dev/x-1",
        ] {
            assert_eq!(split(name), None, "{name}");
        }
    }

    #[test]
    fn subjects_in_one_plot_have_distinct_colours() {
        let plots: [&[&str]; 5] = [
            &["headroom notify-store 6.1", "kernel-6.1", "naive-walk 6.1", "published tree walk"],
            &[
                "headroom (passthrough)",
                "headroom (notify-store)",
                "kernel-6.1",
                "kernel-6.12",
                "kernel-7.x",
                "seqpacket",
                "pipe",
                "futex",
            ],
            &[
                "headroom-6.1",
                "headroom-6.12",
                "headroom-7.x",
                "kernel-6.1",
                "kernel-6.12",
                "kernel-7.x",
            ],
            &["headroom", "none", "earlyoom", "nohang", "systemd-oomd"],
            &["headroom", "published mutex", "published spinlock", "seqpacket"],
        ];
        for names in plots {
            let mut looks: Vec<Look> = names.iter().map(|name| look(name)).collect();
            looks.sort_by_key(|look| (look.colour, look.published));
            looks.dedup();
            assert_eq!(looks.len(), names.len(), "{names:?}");
            assert!(looks.iter().all(|look| look.colour < COLOURS));
        }
    }
}
