//! Runs the program on a small set of results, one of them malicious.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn report(results: &Path, out: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_report"));
    for (option, path) in [
        ("--results", results),
        ("--scenarios", &here("tests/fixtures/scenarios.jsonl")),
        ("--info", &here("tests/fixtures/info.json")),
        ("--reference", &here("../bench/reference/published.jsonl")),
        ("--out", out),
    ] {
        command.arg(option).arg(path);
    }
    command.output().expect("cannot run report")
}

/// The page and the output on stdout.
fn page() -> (String, String) {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("new/folder");
    let output = report(&here("tests/fixtures/results.jsonl"), &out);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let page = fs::read_to_string(out.join("index.html")).expect("a page");
    (page, String::from_utf8(output.stdout).expect("UTF-8"))
}

/// The part of the page from one anchor to the end of its section.
fn section<'p>(page: &'p str, anchor: &str) -> &'p str {
    let start = page.find(&format!("<section id=\"{anchor}\">"));
    let rest = &page[start.unwrap_or_else(|| panic!("no section {anchor}"))..];
    rest.split("</section>").next().unwrap()
}

/// The values of all occurrences of an attribute.
fn attributes<'p>(page: &'p str, name: &str) -> Vec<&'p str> {
    let start = format!(" {name}=\"");
    page.split(&start).skip(1).filter_map(|rest| rest.split('"').next()).collect()
}

#[test]
fn every_benchmark_has_its_section_even_an_unknown_one() {
    let (page, _) = page();
    for known in &report::tables::TABLES.sections {
        let section = section(&page, &known.bench);
        assert!(section.contains(&known.title) && section.contains("<table"), "{}", known.bench);
    }
    let other = section(&page, "other-0");
    assert!(other.contains("teleport") && other.contains("<table"), "{other}");
    for plotted in ["roundtrip", "throughput", "handles", "sendvec", "contention", "reclaim"] {
        assert!(section(&page, plotted).contains("<figure class=\"plot\">"), "{plotted}");
    }
}

#[test]
fn the_first_section_has_a_row_with_a_verdict_for_each_claim() {
    let (page, summary) = page();
    let main = page.split("<main>").nth(1).expect("a body");
    assert!(main.starts_with("<section id=\"claims\">"), "{}", &main[..80]);
    let claims = section(&page, "claims");
    for row in [
        // The worst of several kernels and clocks, beside the best of the same place.
        "≤ 1.436 × (kernel driver)",
        "4 B, Linux 7.x, instruction-count clock",
        "≥ 0.800 × (goal)",
    ] {
        assert!(claims.contains(row), "{row} in {claims}");
    }
    let verdicts: Vec<&str> =
        claims.split("</td></tr>").filter_map(|r| r.rsplit('>').next()).collect();
    let known = ["met", "within error", "missed", "not measured", ""];
    let is_known_miss = |verdict: &&str| verdict.starts_with("since 20");
    assert!(verdicts.iter().all(|it| known.contains(it) || is_known_miss(it)), "{verdicts:?}");
    assert!(verdicts.iter().any(is_known_miss), "{verdicts:?}");
    assert!(claims.contains(">met<") && claims.contains(">missed<"), "{claims}");
    assert!(summary.starts_with("missed"), "{summary}");
}

#[test]
fn a_missed_claim_ends_the_report_with_an_error_that_names_it() {
    let folder = TempDir::new().unwrap();
    let mut results = fs::read_to_string(here("tests/fixtures/results.jsonl")).unwrap();
    results += r#"{"bench":"scan","case":"5000 processes","subject":"headroom, machine","#;
    results += r#""metric":"scan_over_reads","value":2.0,"unit":"ratio","runs":9}"#;
    let changed = folder.path().join("changed.jsonl");
    fs::write(&changed, results + "\n").unwrap();
    let output = report(&changed, folder.path());
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    for kind in ["missed, and no [[known-miss]]", "worse"] {
        let line = format!("{kind}: Victim selection over reading /proc in 5000 processes");
        assert!(said.contains(&line), "{said}");
    }
    assert!(folder.path().join("index.html").exists(), "the page is written before");
}

#[test]
fn the_page_needs_no_network_and_runs_no_script() {
    let (page, _) = page();
    for name in ["src", "href", "srcset", "action", "poster", "xlink:href", "xmlns"] {
        for value in attributes(&page, name) {
            assert!(value.starts_with('#'), "{name}={value}");
        }
    }
    for reference in ["@import", "url(", "<link", "<iframe", "<script", "<img"] {
        assert!(!page.contains(reference), "{reference}");
    }
    assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
}

#[test]
fn hostile_names_are_shown_as_text() {
    let (page, summary) = page();
    for text in [
        "&lt;script&gt;alert(1)&lt;/script&gt;",
        "&lt;img src=http:",
        "wombats&quot; onload=&quot;x",
    ] {
        assert!(page.contains(text), "{text}");
    }
    assert!(!page.contains("wombats\" onload"));
    assert!(!summary.contains("script"), "only claims are printed: {summary}");
}

#[test]
fn published_figures_stand_beside_ours() {
    let (page, _) = page();
    for (bench, subject, figure) in [
        ("handles", "published tree walk", "13.17"),
        ("sendvec", "published kcalloc", "326.5"),
        ("contention", "published spinlock", "58,094"),
        ("reclaim", "published expedited", "3,236"),
    ] {
        let section = section(&page, bench);
        assert!(section.contains(subject) && section.contains(figure), "{bench}: {subject}");
        assert!(section.contains("headroom"), "{bench}");
    }
}

#[test]
fn virtual_time_stands_apart_from_the_wall_clock() {
    let (page, summary) = page();
    let section = section(&page, "roundtrip");
    let (wall, counted) =
        section.split_once("<h3>Instruction-count clock</h3>").expect("two parts");
    assert!(wall.contains("11.70") && !wall.contains("21.90") && !wall.contains("Linux 6.12"));
    assert!(
        counted.contains("21.90") && !counted.contains("11.70") && counted.contains("Linux 6.12")
    );
    assert!(counted.contains("Virtual time"));
    assert!(summary.contains("4 B, Linux 7.x, instruction-count clock"), "{summary}");
}

#[test]
fn scenarios_are_compared_by_the_medians_of_their_runs() {
    let (page, _) = page();
    let section = section(&page, "scenario");
    for wanted in ["earlyoom", "systemd-oomd", "<code>stall_ms_max</code>", "3 runs"] {
        assert!(section.contains(wanted), "{wanted} in {section}");
    }
}

#[test]
fn the_head_names_the_machine_and_the_versions() {
    let (page, _) = page();
    for wanted in ["2026-11-21", "Z80", "kernels.6.12.release", "6.12.107+deb13-amd64"] {
        assert!(page.contains(wanted), "{wanted}");
    }
}

#[test]
fn a_malformed_line_names_its_file_and_line_and_writes_nothing() {
    let folder = TempDir::new().unwrap();
    let results = folder.path().join("broken.jsonl");
    let good = fs::read_to_string(here("tests/fixtures/results.jsonl")).unwrap();
    let first = good.lines().next().unwrap();
    fs::write(&results, format!("{first}\n{first}\n{{\"bench\":\"roundtrip\"\n")).unwrap();
    let output = report(&results, folder.path());
    assert!(!output.status.success());
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("broken.jsonl") && error.contains("line 3"), "{error}");
    assert!(!folder.path().join("index.html").exists());
}

#[test]
fn all_measurements_are_written_as_one_file_but_never_over_what_was_read() {
    let folder = TempDir::new().unwrap();
    assert!(report(&here("tests/fixtures/results.jsonl"), folder.path()).status.success());
    let merged = folder.path().join("results.jsonl");
    let text = fs::read_to_string(&merged).expect("merged results");
    for line in [
        r#""case":"icount: 4 B","subject":"kernel-6.12""#,
        r#""case":"herd","subject":"headroom","metric":"stall_ms_max""#,
    ] {
        assert!(text.contains(line), "{line}");
    }
    let first_line = format!("{}\n", text.lines().next().unwrap());
    fs::write(&merged, &first_line).unwrap();
    assert!(report(&merged, folder.path()).status.success());
    assert_eq!(fs::read_to_string(&merged).unwrap(), first_line);
}
