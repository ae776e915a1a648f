//! Where settings come from: flags, the environment, the settings file, the cluster that runs on
//! this machine.

use crate::harness::Home;

/// Returns the address that `marline status` tried to reach, from its error.
fn tried(home: &Home, flag: Option<&str>, variable: Option<&str>) -> String {
    let mut args = vec!["status"];
    args.extend(flag.iter().flat_map(|flag| ["--address", flag]));
    let mut command = home.command(&args);
    if let Some(variable) = variable {
        command.env("MARLINE_ADDRESS", variable);
    }
    let ended = crate::harness::Running::new(command).end();
    assert_eq!(ended.code, Some(3), "{ended:?}");
    let (_, rest) = ended.stderr.split_once("no cluster answers at ").expect("it says so");
    rest.split(' ').next().unwrap().to_owned()
}

#[test]
fn settings_come_from_flag_environment_file_local_cluster_in_that_order() {
    let home = Home::new();
    let up = home.up(&[]);
    assert_eq!(home.json(&["status"])["address"], up.address());
    let [flag, variable, file] = ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"];
    home.file(".config/marline/config.toml", &format!("address = \"{file}\"\n"));
    assert_eq!(tried(&home, None, None), file);
    assert_eq!(tried(&home, None, Some(variable)), variable);
    assert_eq!(tried(&home, Some(flag), Some(variable)), flag);
}

#[test]
fn the_settings_file_can_set_flags_and_the_environment_overrides_it() {
    let home = Home::new();
    let content = "[up]\ncpus = 7\nresource = [\"licence=2\", \"seat=1\"]\nquiet = true\n";
    let file = home.file("settings.toml", content).display().to_string();
    let _up = home.up(&["--config", &file]);
    let total = home.json(&["status"])["total"].clone();
    assert_eq!((&total["cpu"], &total["custom"]["licence"]), (&7.0.into(), &2.0.into()), "{total}");
    let mut command = home.command(&["up", "--json", "--listen", "127.0.0.1:0", "--config", &file]);
    command.env("MARLINE_CPUS", "5");
    let up = crate::harness::Running::new(command).announced();
    assert_eq!(home.json(&["status", "--address", up.address()])["total"]["cpu"], 5.0);
}

#[test]
fn an_invalid_settings_file_is_rejected() {
    let home = Home::new();
    let wrong = [
        ("nonsense", "is not valid TOML"),
        ("adress = \"x\"", "\"adress\" is not a setting: the settings are address, token_file"),
        ("[up]\ncpu = 1", "\"cpu\" in [up] is not a setting: the settings are listen, lease"),
        ("[up]\nlease = \"soon\"", "\"soon\" does not begin with a number"),
        ("[downstream]", "\"downstream\" is not a setting"),
    ];
    for (content, why) in wrong {
        let file = home.file("wrong.toml", content).display().to_string();
        let ended = home.marline(&["up", "--config", &file]);
        assert_eq!(ended.code, Some(2), "{content}: {ended:?}");
        assert!(ended.stderr.contains(why) && ended.stderr.contains("wrong.toml"), "{ended:?}");
    }
    let missing = home.marline(&["status", "--config", "/no/such/file"]);
    assert_eq!(missing.code, Some(2));
    assert!(missing.stderr.contains("cannot read /no/such/file"), "{missing:?}");
}

#[test]
fn an_invalid_address_is_rejected_in_a_flag_variable_or_file() {
    let home = Home::new();
    let refused = |ended: crate::harness::ExitedProcess| {
        assert_eq!(ended.code, Some(2), "{ended:?}");
        let expected = "expected HOST:PORT or unix:/path, such as 127.0.0.1:7420";
        assert!(ended.stderr.contains(expected), "{ended:?}");
    };
    for address in ["127.0.0.1", "127.0.0.1:99999", "nonsense", "unix:"] {
        refused(home.marline(&["status", "--address", address]));
        refused(home.marline(&["run", "--address", address, "--", "true"]));
        refused(home.marline(&["worker", "--address", address]));
    }
    let mut command = home.command(&["status"]);
    command.env("MARLINE_ADDRESS", "nonsense");
    refused(crate::harness::Running::new(command).end());
    home.file(".config/marline/config.toml", "address = 5\n");
    let ended = home.marline(&["status"]);
    assert!(ended.stderr.contains("config.toml"), "{ended:?}");
    refused(ended);
}

#[test]
fn an_unreachable_address_fails_with_the_reason() {
    let home = Home::new();
    let file = home.file("no-folder", "").display().to_string();
    for (address, why) in [
        ("127.0.0.1:1", "connection refused"),
        ("unix:/nope", "no such file"),
        ("unix:/no/such/folder", "no such folder"),
        (&format!("unix:{file}/x"), "not a folder"),
    ] {
        let ended = home.marline(&["status", "--address", address]);
        assert_eq!(ended.code, Some(3), "{ended:?}");
        let said = format!("no cluster answers at {address} ({why})");
        assert!(ended.stderr.contains(&said), "{said}: {ended:?}");
    }
}

#[test]
fn up_rejects_address_and_suggests_listen() {
    let home = Home::new();
    let ended = home.marline(&["up", "--address", "127.0.0.1:1"]);
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("--listen"), "{ended:?}");
}

#[test]
fn status_needs_neither_home_nor_runtime_folder_but_rejects_an_invalid_one() {
    let home = Home::new();
    let mut command = home.command(&["status"]);
    command.env_remove("HOME").env_remove("XDG_RUNTIME_DIR").env("TMPDIR", home.path());
    let ended = crate::harness::Running::new(command).end();
    assert_eq!(ended.code, Some(3), "{ended:?}");
    let mut command = home.command(&["status"]);
    command.env("XDG_RUNTIME_DIR", "/proc/no/such/folder");
    let ended = crate::harness::Running::new(command).end();
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("set XDG_RUNTIME_DIR"), "{ended:?}");
}

#[test]
fn an_error_names_a_file_that_is_in_place_of_the_runtime_folder() {
    let home = Home::new();
    let file = home.file("run/marline", "");
    let ended = home.marline(&["status"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains(&file.display().to_string()), "{ended:?}");
    assert!(!ended.stderr.contains("--address"), "{ended:?}");
}

#[test]
fn the_object_store_limit_is_set_by_a_flag_variable_or_file() {
    let home = Home::new();
    let limit = |home: &Home, address: &str| {
        home.json(&["memory", "--address", address])["stores"][0]["limit"].clone()
    };
    let up = home.up(&["--object-store-memory", "50MB", "--spill-dir", ""]);
    assert_eq!(limit(&home, up.address()), 50_000_000);
    let file = home.file("settings.toml", "[up]\nobject_store_memory = \"2GiB\"\n");
    let file = file.display().to_string();
    let up = home.up(&["--config", &file]);
    assert_eq!(limit(&home, up.address()), 2_u64 << 30);
    let mut command = home.command(&["up", "--json", "--listen", "127.0.0.1:0", "--config", &file]);
    command.env("MARLINE_STORE_MEMORY", "3000000").env("MARLINE_SPILL_DIR", "");
    let up = crate::harness::Running::new(command).announced();
    assert_eq!(limit(&home, up.address()), 3_000_000);
    for (flag, value, why) in [
        ("--object-store-memory", "5", "takes 1048576 bytes (1 MiB) at least"),
        ("--object-store-memory", "much", "does not begin with a number"),
        ("--spill-dir", "/no/such/folder", "/no/such/folder\", where no file can be made"),
    ] {
        let ended = home.marline(&["up", "--listen", "127.0.0.1:0", flag, value]);
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.stderr.contains(why) && ended.stderr.contains(flag), "{ended:?}");
    }
}
