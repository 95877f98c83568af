//! What an operator watches and moves: `fonnctl top`, `fonnctl warm`, completions.

use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fonn_tests::ctl::{fonnctl, json, lines, text};
use fonn_tests::node::{FonnNode, NodeOptions, ctl_program};
use fonn_tests::values::{Content, ValuePool};

const LIMIT: Duration = Duration::from_secs(60);

/// A node that answers hits and misses until it is dropped.
fn busy() -> Result<FonnNode> {
    let node = NodeOptions::new().start()?;
    let mut client = node.text()?;
    for n in 0..200 {
        client.store(&format!("set k{n} 0 0 100"), &[b'v'; 100])?;
    }
    Ok(node)
}

#[test]
fn top_prints_one_sample_without_a_terminal() -> Result<()> {
    let node = busy()?;
    let admin = node.admin().to_string();
    // The first look waits for two samples; hits come between.
    let mut client = node.text()?;
    let deadline = Instant::now() + LIMIT;
    let told = loop {
        for n in 0..90 {
            client.items(&format!("get k{n}"))?;
        }
        for n in 0..10 {
            client.items(&format!("get absent{n}"))?;
        }
        let told = json(&admin, &["top"])?;
        // A sample may be of the middle of a round; what there is of whole ones grows.
        let ratio = told["hit_ratio"].as_f64();
        if ratio.is_some_and(|it| (0.85..0.95).contains(&it)) {
            break told;
        }
        ensure!(Instant::now() < deadline, "nine of ten are hits: {told}");
    };
    ensure!(
        told["hit_ratio_by_tier"]["ram"] == told["hit_ratio"],
        "{told}"
    );
    ensure!(
        told["commands_per_second"]["get"].as_f64() > Some(1.0),
        "{told}"
    );
    ensure!(told["latency_p99_seconds"].as_f64() > Some(0.0), "{told}");
    ensure!(
        told["tiers"][0]["entries"].as_f64() == Some(200.0),
        "{told}"
    );
    ensure!(
        told["namespaces"]["namespaces"][0]["name"] == "default",
        "{told}"
    );
    ensure!(told["cluster"].is_null(), "a node of its own: {told}");
    // Its output is no terminal here.
    let shown = text(&admin, &["top"])?;
    ensure!(shown.starts_with("node     127.0.0.1:"), "{shown}");
    ensure!(
        shown.contains("NAMESPACE") && !shown.contains('\x1b'),
        "{shown}"
    );
    Ok(())
}

#[test]
fn top_draws_on_a_terminal_and_gives_it_back() -> Result<()> {
    let node = busy()?;
    let program = ctl_program()?;
    let program = program.to_str().context("a path")?;
    // `stty` says what the terminal is like, before and after; the third field is speeds.
    let script = format!(
        "stty cols 100 rows 30; stty -g | cut -d: -f1,2,4-; {program} top --admin {}; echo left with $?; stty -g | cut -d: -f1,2,4-",
        node.admin()
    );
    let mut child = Command::new("script")
        .args(["-qec", &script, "/dev/null"])
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting script (bsdutils)")?;
    let mut stdin = child.stdin.take().context("no input")?;
    let mut stdout = child.stdout.take().context("no output")?;
    let (send, pieces) = mpsc::sync_channel(64);
    std::thread::spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(len @ 1..) = stdout.read(&mut piece) {
            if send.send(piece[..len].to_vec()).is_err() {
                break;
            }
        }
    });
    let mut seen = Vec::new();
    let mut wait_for = |is_there: &dyn Fn(&str) -> bool| -> Result<String> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let text = String::from_utf8_lossy(&seen).into_owned();
            if is_there(&text) {
                return Ok(text);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let piece = pieces.recv_timeout(left);
            seen.extend(piece.with_context(|| format!("only this came: {text:?}"))?);
        }
    };
    // It is drawn anew each second.
    wait_for(&|text| text.matches("latency").count() >= 3)?;
    stdin.write_all(b"xq")?;
    let text = wait_for(&|text| {
        text.contains("left with 0") && text.trim_end().ends_with(settings(text))
    })?;
    ensure!(
        text.contains("\x1b[?1049h") && text.contains("\x1b[?1049l"),
        "{text:?}"
    );
    ensure!(
        text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l"),
        "no cursor: {text:?}"
    );
    drop(stdin);
    child.wait()?;
    Ok(())
}

/// What `stty -g` said first.
fn settings(text: &str) -> &str {
    text.lines().next().unwrap_or_default().trim_end()
}

#[test]
fn completions_parse_and_know_every_flag() -> Result<()> {
    let script = text("127.0.0.1:1", &["completions", "bash"])?;
    let mut bash = Command::new("bash")
        .arg("-n")
        .stdin(Stdio::piped())
        .spawn()?;
    bash.stdin
        .take()
        .context("no input")?
        .write_all(script.as_bytes())?;
    ensure!(bash.wait()?.success(), "bash does not take it");
    // Every command's flags, as its help has them.
    let mut count = 0;
    let mut open = vec![Vec::<String>::new()];
    while let Some(path) = open.pop() {
        let mut arguments: Vec<&str> = path.iter().map(String::as_str).collect();
        arguments.push("--help");
        let help = text("127.0.0.1:1", &arguments)?;
        let mut is_commands = false;
        for line in help.lines() {
            if !line.starts_with(' ') {
                is_commands = line == "Commands:";
            }
            let words = line
                .split_whitespace()
                .map(|word| word.trim_end_matches(','));
            for word in words.take(2) {
                if word.starts_with("--") {
                    ensure!(script.contains(word), "{word} of {path:?} is missing");
                    count += 1;
                }
            }
            let name = line
                .strip_prefix("  ")
                .and_then(|line| line.split(' ').next());
            if let Some(name) =
                name.filter(|name| is_commands && !name.is_empty() && *name != "help")
            {
                ensure!(script.contains(name), "{name} is missing");
                open.push([path.as_slice(), &[name.to_owned()]].concat());
            }
        }
    }
    ensure!(count > 100, "only {count} flags");
    Ok(())
}

/// Gets that were answered, by tier.
fn hits(node: &FonnNode, tier: &str) -> Result<f64> {
    let page = node.http_get("/metrics")?.body;
    let name = format!("fonn_hits_total{{tier=\"{tier}\"}}");
    let mut lines = page.lines().filter_map(|line| line.rsplit_once(' '));
    let found = lines.find(|(found, _)| *found == name);
    Ok(found.with_context(|| name.clone())?.1.parse()?)
}

fn warm(node: &FonnNode, arguments: &[&str]) -> Result<serde_json::Value> {
    let arguments = [&["warm"], arguments].concat();
    let news = lines(&node.admin().to_string(), &arguments)?;
    news.last().cloned().context("no news")
}

#[test]
fn a_restarted_node_is_warmed_with_the_newest_entries_first() -> Result<()> {
    let mut node = NodeOptions::new().start()?;
    let mut client = node.text()?;
    // Bytes count as they are stored, so these do not shrink.
    let pool = ValuePool::new(Content::Random, 1000);
    let value = pool.value(1, 1000).to_vec();
    for n in 0..200 {
        client.store(&format!("set k{n} 0 0 1000"), &value)?;
    }
    // Written again, it is the newest; what was deleted is nothing to bring.
    client.store("set k0 0 0 1000", &value)?;
    client.command("delete k9")?;
    node.stop()?;
    node.start_again()?;

    let some = warm(&node, &["--newest", "50"])?;
    ensure!(some["from_disk"] == 50 && some["end"] == "limit", "{some}");
    let mut client = node.text()?;
    ensure!(client.items("get k0")?.len() == 1);
    for n in 151..200 {
        ensure!(client.items(&format!("get k{n}"))?.len() == 1, "k{n}");
    }
    ensure!(hits(&node, "ram")? == 50.0 && hits(&node, "disk")? == 0.0);

    // About as much as 20 of them take, and what is in RAM already is not brought again.
    let some = warm(&node, &["--bytes", "21k"])?;
    ensure!(some["end"] == "limit" && some["present"] == 50, "{some}");
    let brought = some["from_disk"].as_u64().context("no figure")?;
    ensure!((15..=21).contains(&brought), "{some}");

    let rest = warm(&node, &[])?;
    ensure!(rest["end"] == "all", "{rest}");
    ensure!(rest["from_disk"] == 149 - brought, "{rest}");
    for n in 0..200 {
        let there = usize::from(n != 9);
        ensure!(client.items(&format!("get k{n}"))?.len() == there, "k{n}");
    }
    ensure!(hits(&node, "ram")? == 249.0 && hits(&node, "disk")? == 0.0);
    let told = text(&node.admin().to_string(), &["warm"])?;
    ensure!(told.contains("199 were in RAM already"), "{told}");
    Ok(())
}

#[test]
fn warming_shows_a_bar_on_a_terminal_and_none_elsewhere() -> Result<()> {
    const ENTRIES: u64 = 3000;
    let mut node = NodeOptions::new().start()?;
    let mut client = node.text()?;
    let value = ValuePool::new(Content::Random, 1000)
        .value(1, 1000)
        .to_vec();
    for n in 0..ENTRIES {
        client.store(&format!("set k{n} 0 0 1000"), &value)?;
    }
    node.stop()?;
    node.start_again()?;
    let program = ctl_program()?;
    let program = program.to_str().context("a path")?;
    // So slow that there is something to see, also by a process that stands still for a while;
    // standard output is not the terminal, standard error is.
    let file = node.scratch().join("told");
    let script = format!(
        "{program} warm --rate 300k --admin {} >{}; echo left with $?",
        node.admin(),
        file.display()
    );
    let mut child = Command::new("script")
        .args(["-qec", &script, "/dev/null"])
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting script (bsdutils)")?;
    // Its end would be the end of the terminal.
    let stdin = child.stdin.take();
    let shown = String::from_utf8(child.wait_with_output()?.stdout)?;
    drop(stdin);
    ensure!(shown.trim_end().ends_with("left with 0"), "{shown:?}");
    // Each time it is drawn over what was there, and at the end nothing of it is left.
    let (drawn, left) = shown.rsplit_once("\r\x1b[K").context("no bar")?;
    ensure!(left.trim_end() == "left with 0", "{left:?}");
    let bars: Vec<&str> = drawn
        .split("\r\x1b[K")
        .filter(|it| !it.is_empty())
        .collect();
    let mut shares = Vec::new();
    for bar in &bars {
        let (meter, rest) = bar.split_once("] ").context("no meter")?;
        let (share, words) = rest.split_once(" % ").context("no share")?;
        let has_form = meter.starts_with('[') && words.contains(" entries, ");
        ensure!(has_form, "{bar:?}");
        shares.push(share.trim().parse::<f64>()?);
    }
    let between = shares.iter().filter(|it| (1.0..100.0).contains(*it));
    ensure!(between.count() >= 2, "it is not seen to move: {bars:?}");
    ensure!(shares.is_sorted(), "{shares:?}");
    let told = std::fs::read_to_string(&file)?;
    ensure!(told.contains(&format!("{ENTRIES} from disk")), "{told}");

    // A pipe gets words alone.
    let output = fonnctl(&node.admin().to_string(), &["warm"])?;
    ensure!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
    let told = String::from_utf8(output.stdout)?;
    ensure!(!told.contains('\r') && !told.contains('\x1b'), "{told:?}");
    Ok(())
}
