//! Subjects: their order, and the kernels in their names.

/// Whether the subject is one of our own.
pub fn is_ours(name: &str) -> bool {
    name.starts_with("headroom") || name == "tmalloc"
}

/// Whether the subject was published by others.
pub fn is_published(name: &str) -> bool {
    name.starts_with("published")
}

/// Its class in `style.css`: our own, published, or neither.
pub fn class(name: &str) -> &'static str {
    match (is_ours(name), is_published(name)) {
        (true, _) => "ours",
        (_, true) => "published",
        _ => "",
    }
}

/// Sort key of subjects: our own, the kernel's own, baselines, peers, published ones.
pub fn rank(name: &str) -> (usize, String) {
    const KNOWN: [&str; 9] = [
        "headroom",
        "kernel",
        "seqpacket",
        "none",
        "earlyoom",
        "nohang",
        "systemd-oomd",
        "",
        "published",
    ];
    const UNKNOWN: usize = 7;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ours_come_first_and_the_published_last() {
        let mut names = [
            "published bitmap",
            "stranger",
            "kernel-6.12",
            "kernel-7.x",
            "kernel-6.1",
            "headroom notify-store",
            "headroom passthrough",
            "seqpacket",
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
}
