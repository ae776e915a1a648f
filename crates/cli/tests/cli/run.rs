//! `marline run` prints the output of its command, and exits with its status.

use crate::harness::{Home, is_alive, pid_in, until};

#[test]
fn run_prints_the_output_of_its_command_and_exits_with_its_status() {
    let home = Home::new();
    let _up = home.up(&[]);
    let hello = home.marline(&["run", "--", "echo", "hello"]).succeeded();
    assert_eq!((hello.out(), hello.stderr.as_str()), ("hello\n", ""));
    let seven = home.marline(&["run", "--", "sh", "-c", "echo out; echo err >&2; exit 7"]);
    assert_eq!((seven.code, seven.out(), seven.stderr.as_str()), (Some(7), "out\n", "err\n"));
    let killed = home.marline(&["run", "--", "sh", "-c", "kill -9 $$"]);
    assert_eq!(killed.code, Some(128 + 9), "{killed:?}");
    let binary = home.marline(&["run", "--", "printf", r"\377\000\376"]).succeeded();
    assert_eq!(binary.stdout, [0xff, 0, 0xfe]);
    let closed = home.marline(&["run", "--", "sh", "-c", "exec >&- 2>&-; exit 3"]);
    assert_eq!(closed.code, Some(3), "{closed:?}");
}

#[test]
fn a_command_gets_its_folder_its_variables_and_its_input() {
    let home = Home::new();
    let _up = home.up(&[]);
    let folder = home.path().join("elsewhere");
    std::fs::create_dir(&folder).unwrap();
    let folder = folder.canonicalize().unwrap().display().to_string();
    let script = "pwd; echo $GREETING; echo $MARLINE_ATTEMPT; echo [$MARLINE_EXECUTOR]";
    let args = ["run", "--cwd", &folder, "--env", "GREETING=a=b", "--", "sh", "-c", script];
    let ended = home.marline(&args).succeeded();
    assert_eq!(ended.out(), format!("{folder}\na=b\n1\n[]\n"));
    let read =
        home.marline_with_input(&["run", "--stdin", "--", "cat"], b"some\0input").succeeded();
    assert_eq!(read.stdout, b"some\0input");
    let nothing = home.marline_with_input(&["run", "--", "cat"], b"not for it").succeeded();
    assert_eq!(nothing.out(), "");
}

#[test]
fn run_says_why_a_command_cannot_run_or_timed_out() {
    let home = Home::new();
    let _up = home.up(&[]);
    let no_program = home.marline(&["run", "--", "no-such-program"]);
    assert_eq!(no_program.code, Some(125));
    assert!(no_program.stderr.contains("\"no-such-program\" could not be started"));
    let no_folder = home.marline(&["run", "--cwd", "/no/such/folder", "--", "ls"]);
    assert_eq!(no_folder.code, Some(125));
    assert!(no_folder.stderr.contains("/no/such/folder"), "{}", no_folder.stderr);
    let late = home.marline(&["run", "--timeout", "50ms", "--", "sleep", "600"]);
    assert_eq!(late.code, Some(124));
    assert!(late.stderr.contains("its timeout of 50ms"), "{}", late.stderr);
    for wrong in
        [&["--env", "NOTHING"], &["--env", "=x"], &["--cpus", "-1"], &["--timeout", "soon"]]
    {
        let mut args = vec!["run"];
        args.extend(wrong);
        args.extend(["--", "true"]);
        assert_eq!(home.marline(&args).code, Some(2), "{args:?}");
    }
}

#[test]
fn a_command_without_dashes_before_it_gets_a_tip() {
    let home = Home::new();
    let cases: [(&[&str], &str); 3] = [
        (&["run", "echo", "hi"], "marline run -- echo hi\n"),
        (&["run", "--name", "ls", "ls", "-l"], "marline run --name ls -- ls -l\n"),
        (&["run", "sh", "-c", "echo it's"], "marline run -- sh -c 'echo it'\\''s'\n"),
    ];
    for (typed, meant) in cases {
        let ended = home.marline(typed);
        assert_eq!(ended.code, Some(2), "the command is after --");
        let tip = format!("tip: put -- before the command: {meant}");
        assert!(ended.stderr.contains(&tip), "{tip}: {ended:?}");
    }
    let flag = home.marline(&["run", "--cpuz", "2", "ls"]);
    assert_eq!(flag.code, Some(2));
    assert!(!flag.stderr.contains("put -- before"), "{flag:?}");
}

#[test]
fn an_invalid_amount_is_rejected_with_an_example() {
    let home = Home::new();
    for (flag, wrong) in [("--cpus", "-1"), ("--cpus", "lots"), ("--gpus", "-0.5")] {
        for command in ["run", "up", "worker"] {
            let refused = home.marline(&[command, flag, wrong]);
            assert_eq!(refused.code, Some(2), "{refused:?}");
            let words = format!(
                "invalid value '{wrong}' for '{flag} <COUNT>': expected a number such as 2 or 0.5"
            );
            assert!(refused.stderr.contains(&words), "{refused:?}");
            assert!(!refused.stderr.contains("tip:"), "{refused:?}");
        }
    }
    let refused = home.marline(&["up", "--resource", "licence=-1"]);
    assert!(refused.stderr.contains("expected a number such as 2 or 0.5"), "{refused:?}");
}

#[test]
fn json_says_how_a_command_ended() {
    let home = Home::new();
    let _up = home.up(&[]);
    let ended =
        home.marline(&["run", "--json", "--", "sh", "-c", "echo out; echo err >&2; exit 7"]);
    assert_eq!(ended.code, Some(7));
    let json = ended.json();
    assert_eq!((&json["code"], &json["state"]), (&7.into(), &"failed".into()), "{json}");
    assert_eq!((&json["stdout"], &json["stderr"]), (&"out\n".into(), &"err\n".into()));
    assert_eq!(json["error"], "\"sh\" exited with status 7");
    let json = home.json(&["run", "--", "true"]);
    assert_eq!(
        (&json["code"], &json["error"], &json["left_out"]),
        (&0.into(), &().into(), &0.into())
    );
    let json = home.marline(&["run", "--json", "--", "sh", "-c", "kill -TERM $$"]).json();
    assert_eq!((&json["code"], &json["signal"]), (&().into(), &15.into()));
}

#[test]
fn nothing_of_a_large_output_is_lost() {
    let home = Home::new();
    let _up = home.up(&[]);
    let script = "head -c 20000000 /dev/zero; echo the end >&2";
    let ended = home.marline(&["run", "--", "sh", "-c", script]).succeeded();
    assert_eq!((ended.stdout.len(), ended.stderr.as_str()), (20_000_000, "the end\n"));
}

#[test]
fn run_cancels_its_command_when_its_output_pipe_closes() {
    let home = Home::new();
    let _up = home.up(&[]);
    let mut run = home.start(&["run", "--", "yes"]);
    assert_eq!(run.line(), "y\n");
    run.close_stdout();
    assert_eq!(run.end().code, Some(141));
    let tasks = home.json(&["tasks"]);
    assert_eq!(tasks["tasks"][0]["state"], "cancelled", "{tasks}");
}

#[test]
fn an_interrupt_stops_the_command_and_its_child_processes() {
    let home = Home::new();
    let _up = home.up(&[]);
    let mut run = home.start(&["run", "--", "sh", "-c", "sleep 600 & echo $!; wait"]);
    let child: u32 = run.line().trim().parse().unwrap();
    run.signal("INT");
    assert_eq!(run.end().code, Some(130));
    until("what it started is gone", || !is_alive(child));
}

#[test]
fn a_second_interrupt_kills_a_command_that_ignores_sigterm() {
    let home = Home::new();
    let _up = home.up(&[]);
    let script = "trap 'echo heard' TERM; echo $$; while :; do sleep 600 & wait $!; done";
    let mut run = home.start(&["run", "--", "sh", "-c", script]);
    let command: u32 = run.line().trim().parse().unwrap();
    run.signal("INT");
    assert_eq!(run.line(), "heard\n");
    run.signal("INT");
    assert_eq!(run.end().code, Some(130));
    until("it is gone", || !is_alive(command));
}

#[test]
fn a_command_ends_when_its_run_process_is_killed() {
    let home = Home::new();
    let _up = home.up(&[]);
    let mut run = home.start(&["run", "--", "sh", "-c", "echo $$; exec sleep 600"]);
    let command: u32 = run.line().trim().parse().unwrap();
    assert!(is_alive(command));
    run.signal("KILL");
    until("it is gone", || !is_alive(command));
}

#[test]
fn child_processes_of_a_command_end_with_it() {
    let home = Home::new();
    let _up = home.up(&[]);
    let file = home.path().join("pid");
    let script = format!("sleep 600 & echo $! > {}", file.display());
    home.marline(&["run", "--", "sh", "-c", &script]).succeeded();
    let left = pid_in(&file);
    until("what it left is gone", || !is_alive(left));
}

#[test]
fn a_detached_command_outlives_its_run_process_and_can_be_followed() {
    let home = Home::new();
    let _up = home.up(&[]);
    let gate = home.path().join("gate");
    let script = format!(
        "echo one; echo two >&2; until [ -e {} ]; do sleep 0.01; done; echo three",
        gate.display()
    );
    let id = home.detach(&["--", "sh", "-c", &script]);
    home.until_task_is(&id, "running");
    let mut logs = home.start(&["logs", "--follow", &id]);
    assert_eq!(logs.line(), "one\n");
    std::fs::write(&gate, "").unwrap();
    let ended = logs.end().succeeded();
    assert_eq!((ended.out(), ended.stderr.as_str()), ("three\n", "two\n"));
    home.until_task_is(&id, "finished");
    let json = home.json(&["logs", &id]);
    assert_eq!((&json["stdout"], &json["stderr"]), (&"one\nthree\n".into(), &"two\n".into()));
}
