//! Certificates as Python gives them.

use crate::listen::identity::Names;
use crate::listen::tls;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::Arc;

/// Server certificates; see the stub of the package.
#[pyclass(frozen, module = "edge_appliance_native")]
pub(crate) struct Tls(pub(crate) Arc<tls::Tls>);

#[pymethods]
impl Tls {
    #[new]
    #[pyo3(signature = (
        certificate, key, client_ca = b"".as_slice(), client_names = Vec::new(), protocol = "h2".into()
    ))]
    fn new(
        certificate: &[u8],
        key: &[u8],
        client_ca: &[u8],
        client_names: Vec<String>,
        protocol: String,
    ) -> PyResult<Self> {
        let names = Names::new(client_names);
        let tls =
            tls::Tls::new(certificate, key, client_ca, names, protocol).map_err(PyValueError::new_err)?;
        Ok(Self(Arc::new(tls)))
    }

    #[pyo3(signature = (certificate, key, client_ca = b"".as_slice()))]
    fn reload(&self, certificate: &[u8], key: &[u8], client_ca: &[u8]) -> PyResult<()> {
        self.0.reload(certificate, key, client_ca).map_err(PyValueError::new_err)
    }
}
