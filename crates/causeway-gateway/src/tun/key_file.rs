//! The private key of the tunnel on disk: made once, readable by the owner alone.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::noise::StaticKeys;

/// Reads the key, in the form of `wg genkey`, or makes one. The file appears complete or not at all.
pub fn load_or_create(path: &Path) -> io::Result<StaticKeys> {
    match fs::read_to_string(path) {
        Ok(text) => {
            let bytes = STANDARD.decode(text.trim()).ok().and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
            let unusable = || {
                io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("{} holds no key; remove it to make a new one", path.display()),
                )
            };
            Ok(StaticKeys::from_private(bytes.ok_or_else(unusable)?))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => create(path),
        Err(error) => Err(error),
    }
}

fn create(path: &Path) -> io::Result<StaticKeys> {
    let keys = StaticKeys::generate().map_err(io::Error::other)?;
    let draft = path.with_extension("new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
    file.write_all(format!("{}\n", STANDARD.encode(keys.private())).as_bytes())?;
    file.sync_all()?;
    fs::rename(&draft, path)?;
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_is_made_once_and_kept_private() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tunnel.key");
        let first = load_or_create(&path).unwrap();
        assert_eq!(load_or_create(&path).unwrap().public(), first.public());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::write(&path, "damaged").unwrap();
        assert_eq!(load_or_create(&path).err().map(|error| error.kind()), Some(io::ErrorKind::InvalidData));
    }
}
