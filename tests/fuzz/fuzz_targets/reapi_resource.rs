//! Resource names, instances and digests: no name may panic, and a name that is understood has one
//! key.
#![no_main]

use fonn_reapi::{Digest, Instance, Resource};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|name: &str| {
    for resource in [Resource::for_read(name), Resource::for_write(name)]
        .into_iter()
        .flatten()
    {
        let Resource { instance, digest, .. } = resource;
        assert_eq!(digest.hash().len(), digest.function().hash_len());
        let again = Digest::new(&digest.hash_hex(), digest.len() as i64, digest.function() as i32);
        assert_eq!(again, Ok(digest));
        let named = format!(
            "{}blobs/{}/{}/{}",
            instance.prefix(),
            digest.function().as_str(),
            digest.hash_hex(),
            digest.len()
        );
        let again = Resource::for_read(&named).expect("a name that was made");
        assert_eq!((&again.instance, again.digest), (&instance, digest));
        for key in [digest.blob_key(&instance), digest.result_key(&instance)] {
            let key = String::from_utf8(key).expect("a key is text");
            assert!(!key.starts_with('/') && !key.split('/').any(|it| it == ".."));
        }
    }
    let _ = Instance::new(name);
    let _ = Digest::new(name, 1, 0);
});
