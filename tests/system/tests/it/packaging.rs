//! The files of a release, the Debian package and the container image, made from the debug build of this run and used as `make release`, `make package-test` and
//! `make image-test` use them. The scripts in `deploy/` hold the checks; this file runs them and says why it cannot.
//!
//! `.ci/needs test` fetches what they need: nothing is downloaded here.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use testlab::causeway::{binary, finish};

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(name)
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

fn is_cached(name: &str) -> bool {
    let named = std::env::var_os("CAUSEWAY_CACHE").map(PathBuf::from);
    let cache = named.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache/causeway")));
    cache.is_some_and(|cache| cache.join(name).exists())
}

/// True if all that `test` needs is there; otherwise prints the first lack.
fn can_run(test: &str, needs: &[(bool, &str)]) -> bool {
    let lack = needs.iter().find(|(is_there, _)| !is_there);
    if let Some((_, lack)) = lack {
        println!("skipped: {test}: {lack} is missing");
    }
    lack.is_none()
}

#[test]
fn packaging_a_release_is_whole_and_its_debian_package_installs_runs_upgrades_and_leaves() {
    let needs = [(is_installed("cargo-deb"), "cargo-deb (deploy/debian/build --needs)")];
    if !can_run("the files of a release and the Debian package", &needs) {
        return;
    }
    // The build of this run: target/PROFILE/causeway.
    let program = binary().unwrap();
    let folder = program.parent().unwrap();
    let profile = if folder.ends_with("debug") { "dev" } else { "release" };
    let mut release = Command::new(script("release"));
    release
        .env("CAUSEWAY_BUILT", "1")
        .env("PROFILE", profile)
        .env("CARGO_TARGET_DIR", folder.parent().unwrap());
    finish(release, None).unwrap().success().unwrap();
    let package = release_is_whole(&script("../target/release-files"));

    let needs = [
        (rustix::process::geteuid().is_root(), "root"),
        (is_installed("debootstrap"), "debootstrap"),
        (is_cached("debian-root-bookworm.tar"), "a clean Debian root (deploy/debian/test --needs)"),
    ];
    if !can_run("the Debian package in a clean root", &needs) {
        return;
    }
    let mut test = Command::new(script("debian/test"));
    test.arg(package);
    let ran = finish(test, None).unwrap();
    assert!(ran.code == 0 && ran.stdout.contains("package: ok"), "{}{}", ran.stdout, ran.stderr);
}

/// The files of a release: each is there, checked and of this version. Returns the package.
fn release_is_whole(folder: &Path) -> PathBuf {
    let files = || std::fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path());
    let with = |end: &str| files().find(|path| path.to_string_lossy().ends_with(end)).expect(end);
    let (package, tarball, bill) = (with(".deb"), with(".tar.gz"), with(".cdx.json"));
    assert_eq!(files().count(), 4, "{:?}", files().collect::<Vec<_>>());
    let mut sums = Command::new("sha256sum");
    sums.args(["--check", "--strict", "SHA256SUMS"]).current_dir(folder);
    assert_eq!(finish(sums, None).unwrap().success().unwrap().matches(": OK").count(), 3);

    let root = with(".tar.gz").file_name().unwrap().to_string_lossy().replace(".tar.gz", "");
    assert!(root.starts_with(&format!("causeway-{}-linux-", env!("CARGO_PKG_VERSION"))), "{root}");
    let unpacked = tempfile::tempdir().unwrap();
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(&tarball).arg("-C").arg(unpacked.path());
    finish(tar, None).unwrap().success().unwrap();
    let unpacked = unpacked.path().join(root);
    for file in ["LICENSE", "README.md", "deploy/systemd/causeway-edge.service", "examples/01-sites.yaml"] {
        assert!(unpacked.join(file).is_file(), "{file}");
    }
    let mut version = Command::new(unpacked.join("causeway"));
    version.arg("version");
    let version = finish(version, None).unwrap().success().unwrap();
    assert!(version.contains(env!("CARGO_PKG_VERSION")), "{version}");

    let bill: Value = serde_json::from_slice(&std::fs::read(bill).unwrap()).unwrap();
    assert_eq!(bill["bomFormat"], "CycloneDX");
    let components = bill["components"].as_array().unwrap();
    assert!(components.iter().any(|component| component["name"] == "quinn"), "{components:?}");
    package
}

#[test]
fn packaging_the_container_image_runs_by_buildah_and_by_containerd() {
    let needs = [
        (rustix::process::geteuid().is_root(), "root"),
        (is_installed("buildah"), "buildah (deploy/image/test --needs)"),
        (is_cached("node-1"), "Debian's containerd (tests/k8s/lab/install-node)"),
    ];
    if !can_run("the container image", &needs) {
        return;
    }
    let mut test = Command::new(script("image/test"));
    test.arg(binary().unwrap());
    let ran = finish(test, None).unwrap();
    let said = format!("{}{}", ran.stdout, ran.stderr);
    assert_eq!(ran.code, 0, "{said}");
    for part in ["image: ok by buildah", "image: ok by containerd"] {
        assert!(said.contains(part), "{part} is missing in {said}");
    }
}
