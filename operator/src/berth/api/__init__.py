"""What are the objects of ``berth.dev/v1alpha1``? One module per kind; types are the source of the CRDs."""
