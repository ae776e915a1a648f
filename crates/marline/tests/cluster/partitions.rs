//! A worker on another host, and a network between them that is cut in one direction, in the other,
//! or in both. The other host is a network namespace. Without the right to create namespaces the
//! tests print that and pass; `MARLINE_REQUIRE_NAMESPACES=1` makes that a failure.

use crate::harness::{Process, again_in, is_alive, until};
use marline::{Budget, Client, Controller};
use std::process::Command;
use std::time::Duration;

const TOKEN: &str = "a token, since others could reach it";

/// A network namespace with one virtual wire to this host. It is deleted when this value is
/// dropped.
struct Host {
    name: String,
    here: String,
    there: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    FromHere,
    FromThere,
    Both,
}

fn ip(words: &str) -> Result<(), String> {
    let done =
        Command::new("ip").args(words.split(' ')).output().map_err(|error| error.to_string())?;
    let words = String::from_utf8_lossy(&done.stderr).trim().to_owned();
    if done.status.success() { Ok(()) } else { Err(words) }
}

impl Host {
    /// Creates a host. No other test may use the same number.
    fn make(number: u32) -> Option<Host> {
        let pid = std::process::id();
        let net = format!("10.{}.{}", 100 + number % 100, pid % 250);
        let name = format!("mrl{number}-{}", pid % 100_000);
        let host = Host { name, here: format!("{net}.1"), there: format!("{net}.2") };
        let made = host.wire();
        if let Err(why) = &made {
            let required =
                std::env::var("MARLINE_REQUIRE_NAMESPACES").is_ok_and(|value| value == "1");
            assert!(!required, "no network namespaces: {why}");
            eprintln!("not run: no network namespaces can be made here: {why}");
        }
        made.is_ok().then_some(host)
    }

    fn wire(&self) -> Result<(), String> {
        let Host { name, here, there } = self;
        ip(&format!("netns add {name}"))?;
        ip(&format!("link add {name} type veth peer name eth0 netns {name}"))?;
        ip(&format!("addr add {here}/24 dev {name}"))?;
        ip(&format!("link set {name} up"))?;
        ip(&format!("-n {name} addr add {there}/24 dev eth0"))?;
        ip(&format!("-n {name} link set lo up"))?;
        ip(&format!("-n {name} link set eth0 up"))
    }

    fn cut(&self, cut: Cut) {
        let Host { name, here, there } = self;
        if cut != Cut::FromThere {
            ip(&format!("route add blackhole {there}/32")).unwrap();
        }
        if cut != Cut::FromHere {
            ip(&format!("-n {name} route add blackhole {here}/32")).unwrap();
        }
    }

    fn heal(&self, cut: Cut) {
        let Host { name, here, there } = self;
        if cut != Cut::FromThere {
            ip(&format!("route del blackhole {there}/32")).unwrap();
        }
        if cut != Cut::FromHere {
            ip(&format!("-n {name} route del blackhole {here}/32")).unwrap();
        }
    }

    fn worker(&self, controller: &Controller) -> Process {
        let words = format!("{} at={}:0 token", controller.address(), self.there);
        let worker = Process(again_in(&self.name, "worker_process", "MARLINE_TEST_JOIN", &words));
        until("the worker has joined", || controller.workers().len() == 1);
        worker
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = ip(&format!("route del blackhole {}/32", self.there));
        let _ = ip(&format!("link del {}", self.name));
        let _ = ip(&format!("netns del {}", self.name));
    }
}

fn cluster(host: &Host, lease: Duration) -> (Controller, Client) {
    let controller = Controller::builder().token(TOKEN).lease(lease);
    let controller = controller.listen(&format!("{}:0", host.here)).unwrap();
    let client = Client::connect_with_token(controller.address(), TOKEN).unwrap();
    (controller, client)
}

/// Cuts the network for longer than the lease. Whichever direction is cut, the worker has stopped
/// by its own clock before the controller gives it up.
fn a_worker_behind_a_cut(cut: Cut, number: u32) {
    let Some(host) = Host::make(number) else { return };
    let (controller, client) = cluster(&host, Duration::from_secs(1));
    let _worker = host.worker(&controller);
    let before = controller.workers()[0].session;
    let counter = client.actor("Counter").max_restarts(Budget::Times(1)).create((10_u64,)).unwrap();
    assert_eq!(counter.call::<u64>("add", (1_u64,)).unwrap().wait().unwrap(), 11);
    let pid: u32 = counter.call("pid", ()).unwrap().wait().unwrap();
    assert!(is_alive(pid));
    host.cut(cut);
    until("the worker is lost", || controller.workers().is_empty());
    assert!(!is_alive(pid), "its executors had ended before");
    host.heal(cut);
    until("it joins again", || controller.workers().len() == 1);
    assert_ne!(controller.workers()[0].session, before, "as another session");
    until("the actor has a new life", || {
        counter.call::<u64>("add", (1_u64,)).unwrap().wait().is_ok_and(|total| total == 11)
    });
    assert_eq!(client.task("double").submit::<u64>((4_u64,)).unwrap().wait().unwrap(), 8);
}

#[test]
fn a_worker_that_cannot_be_reached_has_stopped_before_it_is_lost() {
    a_worker_behind_a_cut(Cut::FromHere, 1);
}

#[test]
fn a_worker_that_cannot_answer_has_stopped_before_it_is_lost() {
    a_worker_behind_a_cut(Cut::FromThere, 2);
}

#[test]
fn a_worker_that_is_cut_off_has_stopped_before_it_is_lost() {
    a_worker_behind_a_cut(Cut::Both, 3);
}

/// A cut shorter than the lease: no work is lost, and none is repeated.
#[test]
fn a_network_cut_shorter_than_the_lease_loses_no_work() {
    for (number, cut) in [(4, Cut::FromHere), (5, Cut::FromThere), (6, Cut::Both)] {
        let Some(host) = Host::make(number) else { return };
        let (controller, client) = cluster(&host, Duration::from_secs(60));
        let _worker = host.worker(&controller);
        let before = controller.workers()[0].session;
        let counter = client.actor("Counter").create((0_u64,)).unwrap();
        assert_eq!(counter.call::<u64>("add", (1_u64,)).unwrap().wait().unwrap(), 1);
        host.cut(cut);
        let mut calls: Vec<_> =
            (0..100).map(|_| counter.call::<u64>("add", (1_u64,)).unwrap()).collect();
        let tasks: Vec<_> =
            (0..100_u64).map(|x| client.task("double").submit::<u64>((x,)).unwrap()).collect();
        let nothing = calls.last_mut().unwrap().wait_timeout(Duration::from_millis(300));
        assert!(nothing.is_err(), "{cut:?}: there is a way round");
        host.heal(cut);
        for (total, call) in (2_u64..).zip(calls) {
            assert_eq!(call.wait().unwrap(), total, "{cut:?}");
        }
        for (x, task) in (0_u64..).zip(tasks) {
            assert_eq!(task.wait().unwrap(), x * 2, "{cut:?}");
        }
        assert_eq!(controller.counters().lost, 0);
        assert_eq!(controller.workers()[0].session, before);
    }
}
