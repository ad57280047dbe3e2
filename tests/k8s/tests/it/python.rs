//! The official Python client from PyPI, with its dynamic client. The story itself is in `python/story.py`.

use std::process::Command;

use testlab::causeway::finish;

use crate::{Lab, here};

/// The folder in which the lab keeps a Python with the client; the script brings it when it is missing.
fn python() -> String {
    let ran = finish(Command::new(here("lab/install-python-client")), None).unwrap().success().unwrap();
    ran.lines().last().unwrap().to_owned()
}

#[test]
fn the_dynamic_client_discovers_writes_and_watches() {
    let lab = Lab::start();
    let mut story = Command::new(python());
    story.arg(here("python/story.py")).arg(lab.cloud.kubeconfig()).env("HOME", lab.path("home"));
    let told = finish(story, None).unwrap();
    assert_eq!(told.code, 0, "{}\n{}", told.stdout, told.stderr);
    for row in [
        "discovery finds every kind in both groups",
        "an object is created and read back",
        "a list has a resourceVersion",
        "pages make the same list",
        "a merge patch changes the object",
        "server-side apply is taken",
        "a watch sees every change in order",
        "a watch resumes after a resourceVersion",
        "a refusal is an ApiException with a Status",
        "a conflict is an ApiException",
        "the status has its own door",
        "objects are deleted",
    ] {
        assert!(told.stdout.contains(&format!("ok: {row}\n")), "`{row}` is missing in\n{}", told.stdout);
    }
}
